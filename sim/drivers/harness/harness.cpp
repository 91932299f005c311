// Compiled stream harness: drives beats into a Verilated model and collects its output beats,
// millions of cycles in one call from Python. Compiled once for all designs: a design is a table of
// ports.
#include "harness.h"
#include "memory.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace {

struct Random {  // xorshift64
    uint64_t state;
    uint32_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return static_cast<uint32_t>(state >> 16);
    }
};

struct Throttle {  // stalls of one stream, a two-state Markov chain
    uint32_t stop = 0, start = 0xffffffffu;
    bool open = true;
    bool step(Random& random) {
        if (stop == 0 && open) return true;
        uint32_t draw = random.next();
        open = open ? draw >= stop : draw <= start;
        return open;
    }
};

struct Turns {  // long stalls of one stream at a time; Turns of sim/core/stalls.py
    int64_t shortest, shortest_gap, longest = 0;  // cycles; no stalls without a longest
    int64_t left = 0;                             // cycles of this stall or gap
    const void* stalled = nullptr;                // a stream; none between two stalls
    void begin(Random& random) { left = draw(random, shortest_gap, shortest); }
    // At the end of a stall or gap, with the streams that may stall next.
    void step(Random& random, const std::vector<const void*>& streams) {
        stalled = stalled || streams.empty() ? nullptr : streams[random.next() % streams.size()];
        left = stalled ? draw(random, shortest, longest) : draw(random, shortest_gap, longest / 2);
    }
    static int64_t draw(Random& random, double from, double to) {
        return static_cast<int64_t>(from * std::pow(to / from, random.next() / 4294967296.0));
    }
};

void put(const Port& port, const uint32_t* beat) {
    switch (port.bytes) {
        case 1: *static_cast<uint8_t*>(port.bits) = static_cast<uint8_t>(*beat); break;
        case 2: *static_cast<uint16_t*>(port.bits) = static_cast<uint16_t>(*beat); break;
        default: memcpy(port.bits, beat, port.bytes);
    }
}
void get(const Port& port, uint32_t* beat) {
    switch (port.bytes) {
        case 1: *beat = *static_cast<uint8_t*>(port.bits); break;
        case 2: *beat = *static_cast<uint16_t*>(port.bits); break;
        default: memcpy(beat, port.bits, port.bytes);
    }
}

struct Stream {  // a stream's ports on the model
    Port payload;
    uint8_t *valid, *ready;
    int64_t words;
};

struct Source : Stream {  // offers its beats in order, or its memory's responses
    const uint32_t* beats = nullptr;
    int64_t count = 0, taken = 0;
    int64_t bits = 0;  // of the payload
    bool offering = false, stale = false;  // stale: the payload still is an accepted beat
    Memory* memory = nullptr;
    std::vector<uint32_t> wrong;  // the beat on offer, inverted
    Throttle throttle;
};

struct Sink : Stream {  // collects beats, or passes them to its memory
    uint32_t* beats = nullptr;
    int64_t* cycles = nullptr;
    int64_t expected = 0, room = 0, count = 0;
    bool late = false;  // ready only for a beat already seen
    bool accepting = false, held = false;
    Memory* memory = nullptr;
    std::vector<uint32_t> beat, holding;
    Throttle throttle;
};

enum Status { finished, hung, valid_dropped, payload_changed, out_of_range, memory_only };

struct Result {  // as Python reads it
    int64_t status, stream, cycle;
    int64_t cycles;     // up to the last transfer, that one included
    int64_t simulated;  // all cycles
};

struct Limits {  // in cycles, as Python fills it
    int64_t hang;         // without any transfer
    int64_t drain;        // after the last expected beat and the last memory transfer
    int64_t memory_only;  // with transfers on memory streams alone
};

class Harness {
public:
    std::vector<Source> sources;
    std::vector<Sink> sinks;
    std::vector<Port> constants, observed;
    std::vector<std::unique_ptr<Memory>> memories;
    Random random{1};
    Turns turns;

    explicit Harness(const DesignTable& table) : table(table) {
        std::vector<Port> ports(2 * table.clocked + 3 * (table.sources + table.sinks) +
                                table.constants + table.observed);
        model = table.create(ports.data());
        const Port* port = ports.data();
        const int64_t* words = table.words;
        auto bit = [&port] { return static_cast<uint8_t*>(port++->bits); };
        auto stream = [&] {
            Stream s{*port++};
            s.valid = bit(), s.ready = bit();
            s.words = *words++;
            return s;
        };
        if (table.clocked) clk = bit(), rst = bit();
        for (int64_t k = 0; k < table.sources; k++) sources.push_back({stream()});
        for (int64_t k = 0; k < table.sinks; k++) sinks.push_back({stream()});
        constants.assign(port, port + table.constants);
        port += table.constants;
        observed.assign(port, port + table.observed);
    }
    ~Harness() { table.destroy(model); }
    Harness(const Harness&) = delete;

    void reset() {
        if (!clk) return;
        *rst = 1;
        for (int i = 0; i < 4; i++) *clk = 0, evaluate(), *clk = 1, evaluate();
        *rst = 0;
    }

    // Random traffic, cut off by a reset right after an input was accepted or while an output
    // waits: what follows must not depend on it.
    void disturb() {
        if (!clk) return;
        bool after_input = random.next() & 1, moved = false, waiting = false;
        cycle = 0;
        for (int left = random.next() % 200; left > 0 || !(after_input ? moved : waiting); left--) {
            if (left < -200) break;
            moved = waiting = false;
            for (Source& s : sources) {
                if (s.memory && !s.offering)
                    if (const uint32_t* beat = s.memory->response(cycle)) {
                        put(s.payload, beat);
                        s.offering = true;
                    }
                if (s.memory) *s.valid = s.offering;
                if (!s.count) continue;
                put(s.payload, s.beats + random.next() % s.count * s.words);
                *s.valid = random.next() & 1;
            }
            for (Sink& s : sinks)
                *s.ready = (random.next() & 1) && (!s.memory || s.memory->ready_for(cycle));
            *clk = 0, evaluate();
            for (Source& s : sources) s.offering &= !*s.ready;
            for (Sink& s : sinks)
                if (s.memory && *s.valid && *s.ready) {
                    get(s.payload, s.beat.data());
                    s.memory->request(cycle, s.beat.data());
                }
            cycle++;
            for (Source& s : sources) moved |= *s.valid && *s.ready;
            for (Sink& s : sinks) waiting |= *s.valid && !*s.ready;
            *clk = 1, evaluate();
        }
        for (Source& s : sources) s.offering = false;
        reset();
    }

    // Whether a beat would be accepted in the cycle after a run; that cycle does not end.
    bool takes(Source& s, const uint32_t* beat) {
        put(s.payload, beat), *s.valid = 1;
        if (clk) *clk = 0;
        evaluate();
        bool ready = *s.ready;
        *s.valid = 0, evaluate();
        return ready;
    }

    // Counts cycles on from `first`, so that a memory's schedule survives from one run to the next.
    Result run(const Limits& limits, int64_t first) {
        last = last_memory = last_beat = first - 1;
        complete = -1;
        for (cycle = first;; cycle++) {
            if (turns.longest) take_turns();
            for (Source& s : sources) *s.valid = offer(s);
            for (Sink& s : sinks) *s.ready = accept(s);
            if (clk) *clk = 0;
            evaluate();

            bool done = true;
            for (Source& s : sources) {
                sample_source(s);
                done &= s.taken >= s.count;
            }
            for (Sink& s : sinks) {
                if (Status status = sample_sink(s))
                    return {status, &s - sinks.data(), cycle, last + 1 - first, cycle + 1 - first};
                done &= s.count >= s.expected;
            }
            if (clk) *clk = 1, evaluate();

            if (complete < 0) {
                if (done) complete = cycle;
                else if (cycle > last + limits.hang)
                    return {hung, 0, cycle, last + 1 - first, cycle + 1 - first};
            } else if (cycle >= std::max(complete, last_memory) + limits.drain) {
                return {finished, 0, cycle, complete + 1 - first, cycle + 1 - first};
            }
            if (last_memory > last_beat + limits.memory_only)
                return {memory_only, 0, cycle, last + 1 - first, cycle + 1 - first};
        }
    }

private:
    const DesignTable& table;
    void* model;
    uint8_t *clk = nullptr, *rst = nullptr;  // null in a combinational design
    int64_t cycle, complete;  // complete: the cycle of the last expected transfer, or -1
    int64_t last, last_memory, last_beat;  // latest transfer: any, of a memory, other

    void evaluate() { table.evaluate(model); }

    void transferred(bool memory) {
        last = cycle;
        (memory ? last_memory : last_beat) = cycle;
    }

    void take_turns() {
        if (turns.left-- > 0) return;
        std::vector<const void*> streams;
        for (Source& s : sources)
            if (s.memory || s.taken < s.count) streams.push_back(&s);
        for (Sink& s : sinks) streams.push_back(&s);
        turns.step(random, streams);
        turns.left--;
    }

    bool flows(Stream& s, Throttle& throttle) {
        return throttle.step(random) && (&s != turns.stalled || complete >= 0);
    }

    bool offer(Source& s) {
        if (!s.offering && !s.memory && s.taken == s.count) return hold(s);
        // In each cycle, also while a beat waits, so that a stream of few beats stalls as often.
        bool open = flows(s, s.throttle);
        if (s.offering) return true;
        if (!open) return hold(s);
        const uint32_t* beat = s.memory ? s.memory->response(cycle) : s.beats + s.taken * s.words;
        if (!beat) return hold(s);
        put(s.payload, beat);
        for (int64_t k = 0; k < s.words; k++) {
            int64_t left = s.bits - 32 * k;
            s.wrong[k] = ~beat[k] & (left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0);
        }
        return s.offering = true;
    }

    // A design that reads the payload of a cycle without valid reads a wrong value.
    bool hold(Source& s) {
        if (s.stale) put(s.payload, s.wrong.data());
        return s.stale = false;
    }

    bool accept(Sink& s) {
        return s.accepting = (complete >= 0 || (flows(s, s.throttle) && (s.held || !s.late))) &&
                             s.count < s.room && (!s.memory || s.memory->ready_for(cycle));
    }

    void sample_source(Source& s) {
        if (!s.offering || !*s.ready) return;
        s.offering = false, s.stale = true;
        if (!s.memory) s.taken++;
        transferred(s.memory);
    }

    Status sample_sink(Sink& s) {
        if (!*s.valid) return s.held ? valid_dropped : finished;
        get(s.payload, s.beat.data());
        if (s.held && s.beat != s.holding) return payload_changed;
        s.held = !s.accepting;
        if (s.held) {
            s.holding = s.beat;
            return finished;
        }
        transferred(s.memory);
        if (s.memory) return s.memory->request(cycle, s.beat.data()) ? finished : out_of_range;
        memcpy(s.beats + s.count * s.words, s.beat.data(), s.words * sizeof(uint32_t));
        s.cycles[s.count++] = cycle;
        return finished;
    }
};

uint32_t chance(double p) { return p >= 1 ? 0xffffffffu : static_cast<uint32_t>(p * 4294967296.0); }

}  // namespace

extern "C" {
Harness* harness_new(const DesignTable* table) { return new Harness(*table); }
void harness_delete(Harness* h) { delete h; }
void harness_constant(Harness* h, int which, uint32_t value) { put(h->constants[which], &value); }
// Of 64 bits.
void harness_observe(Harness* h, int which, uint32_t* value) { get(h->observed[which], value); }
void harness_reset(Harness* h) { h->reset(); }
void harness_disturb(Harness* h) { h->disturb(); }
void harness_seed(Harness* h, uint64_t seed) {
    h->random.state = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
    for (int i = 0; i < 8; i++) h->random.next();  // small seeds have few bits set
}
// Long stalls of one stream at a time; 0 for the longest for none.
void harness_turns(Harness* h, int64_t shortest, int64_t shortest_gap, int64_t longest) {
    h->turns = Turns{shortest, shortest_gap, longest};
    if (longest) h->turns.begin(h->random);
}
void harness_source(Harness* h, int k, const uint32_t* beats, int64_t count, int64_t bits,
                    double stop, double start) {
    Source& s = h->sources[k];
    s = Source{{s}, beats, count};
    s.bits = bits, s.wrong.resize(s.words);
    s.throttle.stop = chance(stop), s.throttle.start = chance(start);
}
void harness_sink(Harness* h, int k, uint32_t* beats, int64_t* cycles, int64_t expected,
                  int64_t room, int late, double stop, double start) {
    Sink& s = h->sinks[k];
    s = Sink{{s}, beats, cycles, expected, room};
    s.beat.resize(s.words);
    s.late = late;
    s.throttle.stop = chance(stop), s.throttle.start = chance(start);
}
int harness_takes(Harness* h, int k, const uint32_t* beat) { return h->takes(h->sources[k], beat); }
int64_t harness_received(Harness* h, int k) { return h->sinks[k].count; }
void harness_run(Harness* h, const Limits* limits, Result* result) {
    *result = h->run(*limits, 0);
}
// Goes on where the run before it ended, at cycle `first`, without a reset between.
void harness_continue(Harness* h, const Limits* limits, int64_t first, Result* result) {
    for (auto& memory : h->memories) memory->forget();
    *result = h->run(*limits, first);
}
void harness_forget_memories(Harness* h) { h->memories.clear(); }
// Answer requests that leave at one sink from `contents` at one source, both set before. `dram` is
// null for a memory without banks.
void harness_memory(Harness* h, int sink, int source, uint32_t* contents, int64_t rows,
                    int64_t row_words, const MemoryPort* port, const MemoryTiming* timing,
                    const DramNumbers* dram) {
    h->memories.push_back(
        std::make_unique<Memory>(contents, rows, row_words, *port, *timing, dram));
    h->sinks[sink].memory = h->sources[source].memory = h->memories.back().get();
}
int64_t harness_memory_requests(Harness* h, int k) { return h->memories[k]->accepted.size(); }
// counts: rows read, rows written, latest request's address and whether it was a write
void harness_memory_dram(Harness* h, int k, int64_t* figures) {
    h->memories[k]->dram->use(figures);
}
void harness_memory_use(Harness* h, int k, int64_t* accepted, int64_t* offered, int64_t* rows,
                        int64_t* counts) {
    Memory& memory = *h->memories[k];
    std::copy(memory.accepted.begin(), memory.accepted.end(), accepted);
    std::copy(memory.offered.begin(), memory.offered.end(), offered);
    std::copy(memory.rows_of.begin(), memory.rows_of.end(), rows);
    counts[0] = memory.rows_read, counts[1] = memory.rows_written;
    counts[2] = memory.bad_address, counts[3] = memory.bad_write;
}
}
