// Pairs of binary16 operands through a Verilated unit, against arithmetic of the processor.
//
// The reference works in float and rounds once more, to binary16, to nearest even. A product of two
// binary16 numbers is exact in float. A sum may be rounded twice, which gives what rounding it once
// does, as float's 24 bits are no fewer than 2 * 11 + 2 (Figueroa 1995); subnormal sums are exact.

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "Model.h"
#include "operation.h"  // ADDITION: 1 or 0

// One instruction of the processor, chosen at run time: the library may be cached for another one.
#if defined(__x86_64__) && __GNUC__ >= 11
#include <immintrin.h>
#define F16C 1
#endif

namespace {

constexpr uint16_t QUIET_NAN = 0x7E00;

float widened(uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 1023;
    float magnitude;
    if (exponent == 31) {
        magnitude = fraction ? std::numeric_limits<float>::quiet_NaN()
                             : std::numeric_limits<float>::infinity();
    } else if (exponent == 0) {
        magnitude = std::ldexp(float(fraction), -24);
    } else {
        magnitude = std::ldexp(float(fraction | 1024), exponent - 25);
    }
    return bits >> 15 ? -magnitude : magnitude;
}

// Rounds in units of the last place, by the processor's rounding of float to integer.
uint16_t narrowed_portably(float value) {
    if (std::isnan(value)) return QUIET_NAN;
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (magnitude >= 65520.0f) return sign | 0x7C00;
    int exponent = magnitude < 0x1p-14f ? -14 : std::ilogb(magnitude);
    const int units = int(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
    // The hidden bit, and a carry into the exponent, add themselves to the field.
    return sign | uint16_t(((exponent + 14) << 10) + units);
}

#if F16C
const bool has_f16c = __builtin_cpu_supports("f16c");

__attribute__((target("f16c"))) uint16_t narrowed_by_instruction(float value) {
    return std::isnan(value) ? QUIET_NAN : _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}
#endif

uint16_t narrowed(float value) {
#if F16C
    if (has_f16c) return narrowed_by_instruction(value);
#endif
    return narrowed_portably(value);
}

float operation(float a, float b, bool subtract) {
#if ADDITION
    return subtract ? a - b : a + b;
#else
    return a * b;
#endif
}

struct Table {
    float value[1 << 16];
    Table() {
        for (int bits = 0; bits < 1 << 16; ++bits) value[bits] = widened(uint16_t(bits));
    }
};

const Table table;

}  // namespace

// Compares every a with every b, up to the first difference. Returns the number of operations;
// `difference` becomes whether there was one, a, b, subtract, expected, got.
extern "C" uint64_t exhaustive_pairs(const uint16_t* as, uint64_t a_count, const uint16_t* bs,
                                     uint64_t b_count, uint16_t* difference) {
    VerilatedContext context;
    const auto model = std::make_unique<Model>(&context);
    uint64_t compared = 0;
    difference[0] = 0;
    for (int subtract = 0; subtract <= ADDITION; ++subtract) {
#if ADDITION
        model->subtract = subtract;
#endif
        for (uint64_t i = 0; i < a_count; ++i) {
            const float a = table.value[as[i]];
            model->a = as[i];
            for (uint64_t j = 0; j < b_count; ++j) {
                model->b = bs[j];
                model->eval();
                const uint16_t expected = narrowed(operation(a, table.value[bs[j]], subtract));
                ++compared;
                if (model->o != expected) {
                    const uint16_t found[] = {1,     as[i],    bs[j], uint16_t(subtract),
                                              expected, uint16_t(model->o)};
                    for (int k = 0; k < 6; ++k) difference[k] = found[k];
                    return compared;
                }
            }
        }
    }
    return compared;
}

// The reference alone, so that it can be tested: with the instruction or without.
extern "C" void exhaustive_reference(const uint16_t* as, const uint16_t* bs, uint64_t count,
                                     int subtract, int portably, uint16_t* results) {
    for (uint64_t i = 0; i < count; ++i) {
        const float exact = operation(table.value[as[i]], table.value[bs[i]], subtract);
        results[i] = portably ? narrowed_portably(exact) : narrowed(exact);
    }
}
