// Memory model of the compiled harness: request beats in, tagged response beats out. It follows
// sim/core/memory.py draw for draw and cycle for cycle.
#pragma once
#include "dram.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

inline uint64_t mix(uint64_t z) {  // finaliser of splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

struct Bits {  // a field of a beat
    int64_t offset, width;
};

// OR `width` bits into `to`, whose bits there are 0.
inline void copy_bits(uint32_t* to, int64_t to_offset, const uint32_t* from, int64_t from_offset,
                      int64_t width) {
    while (width > 0) {
        int64_t to_low = to_offset % 32, from_low = from_offset % 32;
        int64_t taken = std::min({width, 32 - to_low, 32 - from_low});
        uint32_t part = from[from_offset / 32] >> from_low;
        if (taken < 32) part &= (1u << taken) - 1;
        to[to_offset / 32] |= part << to_low;
        to_offset += taken, from_offset += taken, width -= taken;
    }
}

inline uint64_t read_bits(const uint32_t* beat, Bits field) {  // at most 64
    uint32_t value[2] = {0, 0};
    copy_bits(value, 0, beat, field.offset, field.width);
    return value[0] | static_cast<uint64_t>(value[1]) << 32;
}

// Laid out as Python fills it; a field that a port lacks has width 0.
struct MemoryPort {
    Bits address, request_tag, write, write_data, response_tag, data;
    int64_t response_words;
};
struct MemoryTiming {
    int64_t shortest, longest, interval, reorder;
    uint64_t seed;
};

class Memory {
public:
    Memory(uint32_t* contents, int64_t rows, int64_t row_words, const MemoryPort& port,
           const MemoryTiming& timing, const DramNumbers* numbers)
        : contents(contents), rows(rows), row_words(row_words), port(port), timing(timing) {
        if (numbers) dram = std::make_unique<DramSchedule>(*numbers, timing.reorder);
    }

    // Cycle in which each request was accepted and its response first offered; -1 without one.
    std::vector<int64_t> accepted, offered;
    std::vector<int64_t> rows_of;  // each request's row; of a write its complement
    int64_t forgotten = 0;  // requests before those
    int64_t rows_read = 0, rows_written = 0;
    std::unique_ptr<DramSchedule> dram;  // null without banks

    // Whether a request may be accepted in this cycle.
    bool ready_for(int64_t cycle) { return !dram || dram->ready_for(cycle); }

    // Accept a request; false if its address is out of range.
    bool request(int64_t cycle, const uint32_t* beat) {
        int64_t number = forgotten + static_cast<int64_t>(accepted.size());
        accepted.push_back(cycle), offered.push_back(-1);
        bad_address = read_bits(beat, port.address);
        bad_write = read_bits(beat, port.write);
        const auto row_of = static_cast<int64_t>(bad_address);
        rows_of.push_back(bad_write ? ~row_of : row_of);
        if (bad_address >= static_cast<uint64_t>(rows)) return false;
        uint32_t* row = contents + bad_address * row_words;
        if (bad_write) {
            std::fill(row, row + row_words, 0u);
            copy_bits(row, 0, beat, port.write_data.offset, port.write_data.width);
            rows_written++;
            if (dram) dram->write(cycle, bad_address);
            return true;
        }
        rows_read++;
        int64_t slot = take_slot();
        uint32_t* response = beats.data() + slot * port.response_words;
        std::fill(response, response + port.response_words, 0u);
        copy_bits(response, port.response_tag.offset, beat, port.request_tag.offset,
                  port.response_tag.width);
        copy_bits(response, port.data.offset, row, 0, port.data.width);
        if (dram) {
            slot_of[number] = slot;
            dram->read(cycle, number, bad_address);
            return true;
        }
        int64_t due = cycle + latency(number);
        if (!timing.reorder) due = latest_due = std::max(due, latest_due);
        waiting.push({due, {number, slot}});
        return true;
    }

    // Forget the cycles of all requests so far, of which a long session has many.
    void forget() {
        forgotten += accepted.size();
        accepted.clear(), offered.clear(), rows_of.clear();
    }

    // The beat to offer from this cycle on, or null; valid until the next request.
    const uint32_t* response(int64_t cycle) {
        auto [number, slot] = dram ? arrived(cycle) : due(cycle);
        if (number < 0) return nullptr;
        free_slots.push_back(slot);
        if (number >= forgotten) offered[number - forgotten] = cycle;
        return beats.data() + slot * port.response_words;
    }

    uint64_t bad_address = 0, bad_write = 0;  // of the latest request

private:
    using Numbered = std::pair<int64_t, int64_t>;  // request number, slot of its response beat
    template <class T> using Earliest = std::priority_queue<T, std::vector<T>, std::greater<T>>;

    // The read to answer from this cycle on; its number is -1 without one.
    Numbered due(int64_t cycle) {
        while (!waiting.empty() && waiting.top().first <= cycle) {
            ready.push(waiting.top().second);
            waiting.pop();
        }
        if (ready.empty() || cycle < next_response) return {-1, -1};
        Numbered answer = ready.top();
        ready.pop();
        next_response = cycle + timing.interval;
        return answer;
    }

    Numbered arrived(int64_t cycle) {
        int64_t number = dram->answer(cycle);
        if (number < 0) return {-1, -1};
        auto found = slot_of.find(number);
        Numbered answer{number, found->second};
        slot_of.erase(found);
        return answer;
    }

    int64_t latency(int64_t number) const {
        uint64_t random = mix(timing.seed + 0x9e3779b97f4a7c15ull * (number + 1));
        return timing.shortest + ((random >> 32) * (timing.longest - timing.shortest + 1) >> 32);
    }

    int64_t take_slot() {
        if (free_slots.empty()) {
            free_slots.push_back(beats.size() / port.response_words);
            beats.resize(beats.size() + port.response_words);
        }
        int64_t slot = free_slots.back();
        free_slots.pop_back();
        return slot;
    }

    uint32_t* contents;
    int64_t rows, row_words;
    MemoryPort port;
    MemoryTiming timing;
    int64_t latest_due = 0, next_response = 0;
    std::vector<uint32_t> beats;
    std::vector<int64_t> free_slots;
    Earliest<std::pair<int64_t, Numbered>> waiting;  // by the cycle they fall due
    Earliest<Numbered> ready;                        // oldest first
    std::unordered_map<int64_t, int64_t> slot_of;    // of a DRAM's reads, by number
};
