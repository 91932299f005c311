// Compiled stream harness: plays beats into a Verilated model and collects what comes out, millions
// of cycles for one call from Python. `ports.h` is generated for each design and defines
//   MODEL, MODEL_HEADER, CLOCKED, MEMORIES, SOURCES(X), SINKS(X), CONSTANTS(X)
// where X(index, payload, valid, ready, words) names a stream's Verilated members.
#include "ports.h"
#include MODEL_HEADER
#include "verilated.h"
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>
#if MEMORIES
#include "memory.h"
#else
struct Memory {  // never made: this harness was built without
    bool request(int64_t, const uint32_t*) { return true; }
    const uint32_t* response(int64_t) { return nullptr; }
};
#endif

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

struct Gate {  // hesitation of one stream, a two-state Markov chain
    uint32_t stop = 0, start = 0xffffffffu;
    bool open = true;
    bool step(Random& random) {
        if (stop == 0 && open) return true;
        uint32_t draw = random.next();
        open = open ? draw >= stop : draw <= start;
        return open;
    }
};

template <int words, class T> void put(T& port, const uint32_t* beat) {
    uint64_t value = beat[0];
    if constexpr (words > 1) value |= static_cast<uint64_t>(beat[1]) << 32;
    port = static_cast<T>(value);
}
template <int words, std::size_t N> void put(VlWide<N>& port, const uint32_t* beat) {
    for (int i = 0; i < words; i++) port[i] = beat[i];
}
template <int words, class T> void get(const T& port, uint32_t* beat) {
    uint64_t value = port;
    beat[0] = static_cast<uint32_t>(value);
    if constexpr (words > 1) beat[1] = static_cast<uint32_t>(value >> 32);
}
template <int words, std::size_t N> void get(const VlWide<N>& port, uint32_t* beat) {
    for (int i = 0; i < words; i++) beat[i] = port[i];
}

struct Source {  // offers its beats in order, or whatever its memory answers
    const uint32_t* beats = nullptr;
    int64_t count = 0, taken = 0;
    bool offering = false;
    Memory* memory = nullptr;
    Gate gate;
};

struct Sink {  // collects beats, or hands them to its memory
    uint32_t* beats = nullptr;
    int64_t* cycles = nullptr;
    int64_t expected = 0, room = 0, count = 0;
    bool late = false;  // ready only for a beat already seen
    bool ready = false, held = false;
    Memory* memory = nullptr;
    std::vector<uint32_t> holding;
    Gate gate;
};

#define COUNT(...) +1
constexpr int source_count = 0 SOURCES(COUNT);
constexpr int sink_count = 0 SINKS(COUNT);

enum Status { finished, hung, valid_dropped, payload_changed, out_of_range, memory_only };

struct Result {  // as Python reads it
    int64_t status, stream, cycle;
    int64_t cycles;     // up to the last transfer, that one included
    int64_t simulated;  // all cycles
};

struct Patience {  // in cycles, as Python fills it
    int64_t hang;         // without any transfer
    int64_t settle;       // after the last expected beat and the last memory transfer
    int64_t memory_only;  // with transfers on memory streams alone
};

class Harness {
public:
    VerilatedContext context;
    MODEL model{&context};
    Source sources[source_count + 1];
    Sink sinks[sink_count + 1];
    std::vector<std::unique_ptr<Memory>> memories;
    Random random{1};

    void reset() {
#if CLOCKED
        model.rst = 1;
        for (int i = 0; i < 4; i++) {
            model.clk = 0, model.eval();
            model.clk = 1, model.eval();
        }
        model.rst = 0;
#endif
    }

    // Random traffic, cut off by a reset right after an input was taken or while an output waits:
    // what follows must not depend on it.
    void disturb() {
#if CLOCKED
        bool after_input = random.next() & 1, moved = false, waiting = false;
        for (int left = random.next() % 200; left > 0 || !(after_input ? moved : waiting); left--) {
            if (left < -200) break;
            moved = waiting = false;
#define DISTURB_SOURCE(k, payload, valid, ready, words)                                            \
    if (sources[k].count) {                                                                        \
        put<words>(model.payload, sources[k].beats + random.next() % sources[k].count * words);    \
        model.valid = random.next() & 1;                                                           \
    }
#define DISTURB_SINK(k, payload, valid, ready, words) model.ready = random.next() & 1;
#define WATCH_SOURCE(k, payload, valid, ready, words) moved |= model.valid && model.ready;
#define WATCH_SINK(k, payload, valid, ready, words) waiting |= model.valid && !model.ready;
            SOURCES(DISTURB_SOURCE)
            SINKS(DISTURB_SINK)
            model.clk = 0, model.eval();
            SOURCES(WATCH_SOURCE)
            SINKS(WATCH_SINK)
            model.clk = 1, model.eval();
        }
        reset();
#endif
    }

    Result run(const Patience& patience) {
        last = last_memory = last_job = complete = -1;
        for (cycle = 0;; cycle++) {
#define DRIVE_SOURCE(k, payload, valid, ready, words)                                              \
    model.valid = offer<words>(sources[k], model.payload);
#define DRIVE_SINK(k, payload, valid, ready, words) model.ready = accept(sinks[k]);
            SOURCES(DRIVE_SOURCE)
            SINKS(DRIVE_SINK)
#if CLOCKED
            model.clk = 0;
#endif
            model.eval();

            bool done = true;
#define SAMPLE_SOURCE(k, payload, valid, ready, words)                                             \
    sample_source(sources[k], model.ready);                                                        \
    done &= sources[k].taken >= sources[k].count;
#define SAMPLE_SINK(k, payload, valid, ready, words)                                               \
    if (Status status = sample_sink<words>(sinks[k], model.payload, model.valid))                  \
        return {status, k, cycle, last + 1, cycle + 1};                                            \
    done &= sinks[k].count >= sinks[k].expected;
            SOURCES(SAMPLE_SOURCE)
            SINKS(SAMPLE_SINK)
#if CLOCKED
            model.clk = 1;
            model.eval();
#endif
            if (complete < 0) {
                if (done) complete = cycle;
                else if (cycle > last + patience.hang)
                    return {hung, 0, cycle, last + 1, cycle + 1};
            } else if (cycle >= std::max(complete, last_memory) + patience.settle) {
                return {finished, 0, cycle, complete + 1, cycle + 1};
            }
            if (last_memory > last_job + patience.memory_only)
                return {memory_only, 0, cycle, last + 1, cycle + 1};
        }
    }

private:
    int64_t cycle, complete;  // complete: the cycle of the last expected transfer, or -1
    int64_t last, last_memory, last_job;  // latest transfer on any stream, memories', the job's

    void transferred(bool memory) {
        last = cycle;
        (memory ? last_memory : last_job) = cycle;
    }

    template <int words, class T> bool offer(Source& s, T& payload) {
        if (s.offering) return true;
        if (!s.memory && s.taken == s.count) return false;
        if (!s.gate.step(random)) return false;
        const uint32_t* beat = s.memory ? s.memory->response(cycle) : s.beats + s.taken * words;
        if (!beat) return false;
        put<words>(payload, beat);
        return s.offering = true;
    }

    bool accept(Sink& s) {
        return s.ready = (complete >= 0 || (s.gate.step(random) && (s.held || !s.late))) && s.count < s.room;
    }

    void sample_source(Source& s, bool ready) {
        if (!s.offering || !ready) return;
        s.offering = false;
        if (!s.memory) s.taken++;
        transferred(s.memory);
    }

    template <int words, class T> Status sample_sink(Sink& s, const T& payload, bool valid) {
        if (!valid) return s.held ? valid_dropped : finished;
        uint32_t beat[words];
        get<words>(payload, beat);
        if (s.held && memcmp(beat, s.holding.data(), sizeof beat)) return payload_changed;
        s.held = !s.ready;
        if (s.held) {
            s.holding.assign(beat, beat + words);
            return finished;
        }
        transferred(s.memory);
        if (s.memory) return s.memory->request(cycle, beat) ? finished : out_of_range;
        memcpy(s.beats + s.count * words, beat, sizeof beat);
        s.cycles[s.count++] = cycle;
        return finished;
    }
};

uint32_t chance(double p) { return p >= 1 ? 0xffffffffu : static_cast<uint32_t>(p * 4294967296.0); }

}  // namespace

extern "C" {
Harness* harness_new() { return new Harness; }
void harness_delete(Harness* h) {
    h->model.final();
    delete h;
}
void harness_constant(Harness* h, int which, uint32_t value) {
#define SET_CONSTANT(k, port)                                                                      \
    if (which == k) h->model.port = value;
    CONSTANTS(SET_CONSTANT)
}
void harness_reset(Harness* h) { h->reset(); }
void harness_disturb(Harness* h) { h->disturb(); }
void harness_seed(Harness* h, uint64_t seed) {
    h->random.state = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
    for (int i = 0; i < 8; i++) h->random.next();  // small seeds have few bits set
}
void harness_source(Harness* h, int k, const uint32_t* beats, int64_t count, double stop,
                    double start) {
    Source& s = h->sources[k];
    s = Source{beats, count};
    s.gate.stop = chance(stop), s.gate.start = chance(start);
}
void harness_sink(Harness* h, int k, uint32_t* beats, int64_t* cycles, int64_t expected,
                  int64_t room, int late, double stop, double start) {
    Sink& s = h->sinks[k];
    s = Sink{beats, cycles, expected, room};
    s.late = late;
    s.gate.stop = chance(stop), s.gate.start = chance(start);
}
int64_t harness_received(Harness* h, int k) { return h->sinks[k].count; }
void harness_run(Harness* h, const Patience* patience, Result* result) {
    *result = h->run(*patience);
}
void harness_forget_memories(Harness* h) { h->memories.clear(); }
#if MEMORIES
// Answer requests that leave at one sink from `contents` at one source, both set before.
void harness_memory(Harness* h, int sink, int source, uint32_t* contents, int64_t rows,
                    int64_t row_words, const MemoryPort* port, const MemoryTiming* timing) {
    h->memories.push_back(std::make_unique<Memory>(contents, rows, row_words, *port, *timing));
    h->sinks[sink].memory = h->sources[source].memory = h->memories.back().get();
}
int64_t harness_memory_requests(Harness* h, int k) { return h->memories[k]->accepted.size(); }
// counts: rows read, rows written, latest request's address and whether it was a write
void harness_memory_use(Harness* h, int k, int64_t* accepted, int64_t* offered, int64_t* counts) {
    Memory& memory = *h->memories[k];
    std::copy(memory.accepted.begin(), memory.accepted.end(), accepted);
    std::copy(memory.offered.begin(), memory.offered.end(), offered);
    counts[0] = memory.rows_read, counts[1] = memory.rows_written;
    counts[2] = memory.bad_address, counts[3] = memory.bad_write;
}
#endif
}
