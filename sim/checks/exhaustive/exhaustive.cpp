// Pairs of FP16 or BF16 operands through a bit-sliced unit, against arithmetic of the processor.
//
// Sums and products are computed in float and rounded once more, to the format, to nearest even. A
// product of two FP16 or BF16 numbers is exact in float, unless it is subnormal there: those of BF16
// are scaled. A sum may be rounded twice, which gives what rounding it once does, as float's 24 bits
// are no fewer than 2 * 11 + 2 (Figueroa 1995); sums that are subnormal in the format are exact.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#define F16C 1
#endif

namespace {

typedef long long lanes __attribute__((vector_size(64)));
using unit_function = void (*)(const lanes* in, lanes* out);

constexpr int ROW = 32;   // operations whose 16-bit results fill a vector
constexpr int ROWS = 16;  // vectors of results in a block
constexpr int BLOCK = ROW * ROWS;
constexpr int VALUES = 1 << 16;
constexpr int B = 0, A = 16, SUBTRACT_INPUT = 32, INPUTS = 33;  // first vectors of the unit's ports

enum Operation { ADD, SUBTRACT, MULTIPLY, COMPARE, MAXIMUM, MINIMUM, CONVERT };

struct Fp16 {
    static constexpr int MANTISSA = 10, BIAS = 15;
    static constexpr uint16_t INFINITE = 0x7C00, QUIET_NAN = 0x7E00;
};

struct Bf16 {
    static constexpr int MANTISSA = 7, BIAS = 127;
    static constexpr uint16_t INFINITE = 0x7F80, QUIET_NAN = 0x7FC0;
};

template <typename Format>
float widened(uint16_t bits) {
    const int exponent = (bits & 0x7FFF) >> Format::MANTISSA;
    const int fraction = bits & ((1 << Format::MANTISSA) - 1);
    const float hidden = 1 << Format::MANTISSA;
    const int place = 1 - Format::BIAS - Format::MANTISSA;
    float magnitude;
    if ((bits & 0x7FFF) >= Format::INFINITE) {
        magnitude = fraction ? std::numeric_limits<float>::quiet_NaN()
                             : std::numeric_limits<float>::infinity();
    } else if (exponent == 0) {
        magnitude = std::ldexp(float(fraction), place);
    } else {
        magnitude = std::ldexp(fraction + hidden, exponent - 1 + place);
    }
    return bits >> 15 ? -magnitude : magnitude;
}

// What every operand counts as: itself, or a subnormal flushed to the zero of its sign.
struct Operands {
    uint16_t bits[VALUES];
    float value[VALUES];
};

template <typename Format>
uint16_t flushed(uint16_t bits) {
    return (bits & 0x7FFF) >> Format::MANTISSA ? bits : bits & 0x8000;
}

template <typename Format, bool FLUSH>
const Operands& operands() {
    static const auto* const table = [] {
        auto* const made = new Operands;
        for (int bits = 0; bits < VALUES; ++bits) {
            made->bits[bits] = FLUSH ? flushed<Format>(bits) : bits;
            made->value[bits] = widened<Format>(made->bits[bits]);
        }
        return made;
    }();
    return *table;
}

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

// Rounds in units of the last place, by the processor's rounding of float to integer.
uint16_t to_fp16_portably(float value) {
    if (std::isnan(value)) return Fp16::QUIET_NAN;
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (magnitude >= 65520.0f) return sign | Fp16::INFINITE;
    const int exponent = magnitude < 0x1p-14f ? -14 : std::ilogb(magnitude);
    const int units = int(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    // The hidden bit, and a carry into the exponent, add themselves to the field.
    return sign | uint16_t(((exponent + 14) << 10) + units);
}

void to_fp16(const float* value, uint16_t* result) {
#if F16C
    const __m128i magnitude = _mm_set1_epi16(0x7FFF), infinite = _mm_set1_epi16(Fp16::INFINITE);
    const __m128i nan = _mm_set1_epi16(Fp16::QUIET_NAN);
    for (int i = 0; i < BLOCK; i += 8) {
        const __m256 eight = _mm256_loadu_ps(value + i);
        const __m128i rounded = _mm256_cvtps_ph(eight, _MM_FROUND_TO_NEAREST_INT);
        const __m128i is_nan = _mm_cmpgt_epi16(_mm_and_si128(rounded, magnitude), infinite);
        const __m128i one_nan = _mm_blendv_epi8(rounded, nan, is_nan);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(result + i), one_nan);
    }
#else
    for (int i = 0; i < BLOCK; ++i) result[i] = to_fp16_portably(value[i]);
#endif
}

// BF16 is the upper half of a float: adding almost half of its last place carries where it rounds
// up. The largest float becomes infinity by the same carry.
void to_bf16(const float* value, uint16_t* result) {
    for (int i = 0; i < BLOCK; ++i) {
        const uint32_t bits = bits_of(value[i]);
        const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        result[i] = (bits & 0x7FFFFFFF) > 0x7F800000 ? Bf16::QUIET_NAN : rounded;
    }
}

template <typename Format>
void narrowed(const float* value, uint16_t* result) {
    if constexpr (std::is_same_v<Format, Fp16>) {
        to_fp16(value, result);
    } else {
        to_bf16(value, result);
    }
}

// A product below BF16's normal numbers, rounded to a multiple of the smallest number: at 2^64 times
// its size, by adding what has that last place.
float subnormal_bf16_product(float a, float b) {
    const float scaled = a * 0x1p64f * b;
    const float rounded = (std::fabs(scaled) + 0x1p-46f) - 0x1p-46f;
    return std::copysign(rounded * 0x1p-64f, scaled);
}

// Results of a block of operations on a first operand and second ones that follow each other.
template <typename Format, bool FLUSH, int OPERATION>
void expected(uint16_t first, uint16_t second, uint16_t* result) {
    const Operands& table = operands<Format, FLUSH>();
    const uint16_t a = table.bits[first];
    const uint16_t* const b = table.bits + second;
    const float x = table.value[first];
    const float* const y = table.value + second;
    if constexpr (OPERATION == COMPARE) {
        for (int i = 0; i < BLOCK; ++i) {
            const bool unordered = x != x || y[i] != y[i];
            result[i] = (x < y[i]) | (x == y[i]) << 1 | unordered << 2;
        }
    } else if constexpr (OPERATION == MAXIMUM || OPERATION == MINIMUM) {
        constexpr bool LARGER = OPERATION == MAXIMUM;
        for (int i = 0; i < BLOCK; ++i) {
            const bool choose_a = LARGER ? x > y[i] : x < y[i];
            // Equal numbers have equal bits, but for the sign of zero.
            const uint16_t same = LARGER ? a & b[i] : a | b[i];
            const uint16_t number = x == y[i] ? same : choose_a ? a : b[i];
            const uint16_t other = x != x ? b[i] : a;
            const uint16_t some = (x != x) | (y[i] != y[i]) ? other : number;
            result[i] = (x != x) & (y[i] != y[i]) ? Format::QUIET_NAN : some;
        }
    } else {
        float exact[BLOCK];
        for (int i = 0; i < BLOCK; ++i) {
            if constexpr (OPERATION == ADD) exact[i] = x + y[i];
            if constexpr (OPERATION == SUBTRACT) exact[i] = x - y[i];
            if constexpr (OPERATION == MULTIPLY) exact[i] = x * y[i];
            if constexpr (OPERATION == CONVERT) {  // the operands are the halves of one number
                exact[i] = std::bit_cast<float>(uint32_t(first) << 16 | (second + i));
            }
        }
        if constexpr (OPERATION == MULTIPLY && std::is_same_v<Format, Bf16>) {
            for (int i = 0; i < BLOCK; ++i) {
                const float small = subnormal_bf16_product(x, y[i]);
                const bool subnormal = exact[i] != 0 && std::fabs(exact[i]) < 0x1p-126f;
                exact[i] = subnormal ? small : exact[i];
            }
        }
        if constexpr (OPERATION == CONVERT && FLUSH) {
            for (float& value : exact) {
                if (std::fabs(value) < 0x1p-126f) value = std::copysign(0.0f, value);
            }
        }
        narrowed<Format>(exact, result);
        if constexpr (FLUSH) {
            for (int i = 0; i < BLOCK; ++i) result[i] = flushed<Format>(result[i]);
        }
    }
}

using expected_function = void (*)(uint16_t first, uint16_t second, uint16_t* result);

template <typename Format, bool FLUSH>
expected_function expected_of(int operation) {
    constexpr expected_function functions[] = {
        expected<Format, FLUSH, ADD>,      expected<Format, FLUSH, SUBTRACT>,
        expected<Format, FLUSH, MULTIPLY>, expected<Format, FLUSH, COMPARE>,
        expected<Format, FLUSH, MAXIMUM>,  expected<Format, FLUSH, MINIMUM>,
        expected<Format, FLUSH, CONVERT>,
    };
    return functions[operation];
}

expected_function expected_of(int operation, bool bf16, bool flush) {
    if (bf16) return flush ? expected_of<Bf16, true>(operation) : expected_of<Bf16, false>(operation);
    return flush ? expected_of<Fp16, true>(operation) : expected_of<Fp16, false>(operation);
}

lanes all(bool bit) { return lanes{} - bit; }

// 16 vectors, each one bit of 512 results, become 16 vectors of 32 results.
template <int DISTANCE>
void exchange(lanes* vectors, lanes mask) {
    for (int low = 0; low < ROWS; ++low) {
        if (low & DISTANCE) continue;
        lanes &first = vectors[low], &second = vectors[low + DISTANCE];
        const lanes moved = ((first >> DISTANCE) ^ second) & mask;
        second ^= moved;
        first ^= moved << DISTANCE;
    }
}

void transpose(lanes* vectors) {
    exchange<8>(vectors, lanes{} + 0x00FF00FF00FF00FF);
    exchange<4>(vectors, lanes{} + 0x0F0F0F0F0F0F0F0F);
    exchange<2>(vectors, lanes{} + 0x3333333333333333);
    exchange<1>(vectors, lanes{} + 0x5555555555555555);
}

// The second operand's low nine bits in the lanes of a block. Transposing moves lane 16 g + r to
// place g of row r, so that lane holds 32 r + g: each row is of 32 numbers that follow each other.
void fill(lanes* in) {
    uint16_t bits[9][ROW] = {};
    for (int r = 0; r < ROWS; ++r) {
        for (int g = 0; g < ROW; ++g) {
            for (int bit = 0; bit < 9; ++bit) bits[bit][g] |= ((ROW * r + g) >> bit & 1) << r;
        }
    }
    std::memcpy(in + B, bits, sizeof bits);
}

}  // namespace

struct Difference {
    uint16_t found, a, b, expected, got;
};

// Compares every first operand with all second ones, up to the first difference. Returns the number
// of operations compared.
extern "C" uint64_t exhaustive_pairs(unit_function unit, int operation, int bf16, int flush,
                                     const uint16_t* firsts, uint64_t count,
                                     Difference* difference) {
    const expected_function expected = expected_of(operation, bf16, flush);
    lanes in[INPUTS];
    fill(in);
    in[SUBTRACT_INPUT] = all(operation == SUBTRACT);
    for (uint64_t n = 0; n < count; ++n) {
        const uint16_t a = firsts[n];
        for (int bit = 0; bit < 16; ++bit) in[A + bit] = all(a >> bit & 1);
        for (int block = 0; block < VALUES; block += BLOCK) {
            for (int bit = 9; bit < 16; ++bit) in[B + bit] = all(block >> bit & 1);
            lanes got[ROWS] = {};
            unit(in, got);
            transpose(got);
            uint16_t right[BLOCK];
            expected(a, block, right);
            if (std::memcmp(got, right, sizeof right) == 0) continue;
            uint16_t results[BLOCK];
            std::memcpy(results, got, sizeof results);
            int i = 0;
            while (results[i] == right[i]) ++i;
            *difference = {1, a, uint16_t(block + i), right[i], results[i]};
            return n * VALUES + block + i + 1;
        }
    }
    return count * VALUES;
}

// The reference alone, so that it can be tested, for any pairs.
extern "C" void exhaustive_reference(int operation, int bf16, int flush, const uint16_t* firsts,
                                     const uint16_t* seconds, uint64_t count, uint16_t* results) {
    const expected_function expected = expected_of(operation, bf16, flush);
    for (uint64_t i = 0; i < count; ++i) {
        uint16_t block[BLOCK];
        expected(firsts[i], seconds[i] / BLOCK * BLOCK, block);
        results[i] = block[seconds[i] % BLOCK];
    }
}

// Rounding to FP16 without the processor's instruction.
extern "C" void exhaustive_portable_fp16(const float* values, uint64_t count, uint16_t* results) {
    for (uint64_t i = 0; i < count; ++i) results[i] = to_fp16_portably(values[i]);
}
