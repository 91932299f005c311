// DRAM of the compiled harness: when the rows of a memory arrive. It follows sim/core/dram clock for
// clock: Channel is channel.py, Device device.py, DramSchedule the class of that name in timing.py.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

// As DramTiming.dram_numbers fills it: a standard, the controller's policy, the core's clock and
// rows, and the map of addresses. standards.py and channel.py have the same names.
struct DramNumbers {
    int64_t tck_ps, channels, ranks, groups, banks, rows, columns, line, chips, burst,
        split_commands, read_latency, write_latency, activate_to_column, precharge, row_active,
        row_cycle, column_short, column_long, activate_short, activate_long, four_activates,
        write_to_read_short, write_to_read_long, read_to_precharge, write_recovery, turnaround,
        refresh, refresh_interval;
    int64_t reads, writes, writes_high, writes_low, hits, window;
    int64_t per_cycle, per_clock, row_bytes;
    struct Field {
        int64_t first, width;
    } channel, rank, group, bank, row, column;
    int64_t hashed;
};

struct DramCounts {  // as Counts
    int64_t reads = 0, writes = 0, row_hits = 0, activations = 0, refreshes = 0, open_clocks = 0;
};

struct DramBurst {
    int64_t number, line, bank, row;
    bool write;
};

constexpr int64_t never = int64_t{1} << 62;

class DramChannel {
public:
    explicit DramChannel(const DramNumbers& numbers)
        : s(numbers), bank_count(s.ranks * s.groups * s.banks), open_row(bank_count, -1),
          hits(bank_count), activate_at(bank_count), column_at(bank_count),
          precharge_at(bank_count), activate_in(s.ranks * s.groups), read_in(s.ranks * s.groups),
          write_in(s.ranks * s.groups), open(s.ranks), opened(s.ranks) {
        for (auto& bursts : waiting) bursts.resize(bank_count);
        activated.assign(s.ranks, {-never, -never, -never, -never});
        for (int64_t r = 0; r < s.ranks; r++)
            due.push_back(s.refresh_interval * (r + 1) / s.ranks);
        next = *std::min_element(due.begin(), due.end());
    }

    int64_t next;  // the earliest clock at which a command may go
    DramCounts counts;

    bool has_room(bool write) const { return count[write] < (write ? s.writes : s.reads); }

    void add(int64_t clock, const DramBurst& burst) {
        waiting[burst.write][burst.bank].push_back(burst);
        count[burst.write]++;
        next = std::min(next, clock);
    }

    // Issue what may go in this clock; whether a column went, and of which burst.
    bool step(int64_t clock, DramBurst& gone) {
        choose_direction();
        int64_t earliest = never;
        bool row_bus = !refresh(clock, earliest);
        bool column_bus = row_bus || s.split_commands, moved = !row_bus;
        DramBurst column{never}, row{never};
        const auto& column_in = writing ? write_in : read_in;
        for (int64_t bank = 0; bank < bank_count; bank++) {
            const auto& bursts = waiting[writing][bank];
            if (bursts.empty() || clock >= due[rank_of(bank)]) continue;
            const DramBurst& burst = candidate(bank, bursts);
            bool hit = open_row[bank] == burst.row;
            int64_t at = precharge_at[bank], group = group_of(bank);
            if (hit) {
                at = std::max(column_at[bank], column_in[group]);
            } else if (open_row[bank] < 0) {
                int64_t window = activated[rank_of(bank)][0] + s.four_activates;
                at = std::max({activate_at[bank], activate_in[group], window});
            }
            DramBurst& oldest = hit ? column : row;
            if (at <= clock && burst.number < oldest.number) oldest = burst;
            if (clock < at) earliest = std::min(earliest, at);
        }
        bool went = column.number != never && column_bus;
        if (went) {
            gone = column;
            issue_column(clock, column);
            row_bus = row_bus && s.split_commands;
        }
        moved |= went;
        if (row.number != never && row_bus) {
            issue_row(clock, row);
            moved = true;
        }
        for (int64_t at : due)
            if (at > clock) earliest = std::min(earliest, at);
        next = moved ? clock + 1 : earliest;
        return went;
    }

    DramCounts settle(int64_t clock) const {
        DramCounts settled = counts;
        for (int64_t r = 0; r < s.ranks; r++)
            if (open[r]) settled.open_clocks += clock - opened[r];
        return settled;
    }

private:
    const DramNumbers& s;
    int64_t bank_count;
    std::vector<int64_t> open_row, hits, activate_at, column_at, precharge_at;  // by bank
    std::vector<int64_t> activate_in, read_in, write_in;                        // by bank group
    std::vector<int64_t> open, opened, due;                                     // by rank
    std::vector<std::array<int64_t, 4>> activated;
    std::array<std::vector<std::deque<DramBurst>>, 2> waiting;  // of reads, of writes; by bank
    std::array<int64_t, 2> count{};
    bool writing = false;

    int64_t group_of(int64_t bank) const { return bank / s.banks; }
    int64_t rank_of(int64_t bank) const { return bank / (s.banks * s.groups); }

    void choose_direction() {
        if (writing)
            writing = count[1] > (count[0] ? s.writes_low : 0);
        else
            writing = count[1] >= s.writes_high || (count[1] && !count[0]);
    }

    const DramBurst& candidate(int64_t bank, const std::deque<DramBurst>& bursts) const {
        if (open_row[bank] >= 0 && hits[bank] < s.hits)
            for (const DramBurst& burst : bursts)
                if (burst.row == open_row[bank]) return burst;
        return bursts.front();
    }

    // Refresh the ranks that are due; whether that took the bus for rows.
    bool refresh(int64_t clock, int64_t& earliest) {
        int64_t of_rank = s.groups * s.banks;
        for (int64_t rank = 0; rank < s.ranks; rank++) {
            if (clock < due[rank]) continue;
            int64_t first = rank * of_rank, end = first + of_rank, at = 0;
            for (int64_t bank = first; bank < end; bank++) {
                if (!open[rank]) at = std::max(at, activate_at[bank]);
                else if (open_row[bank] >= 0) at = std::max(at, precharge_at[bank]);
            }
            if (at > clock) {
                earliest = std::min(earliest, at);
                continue;
            }
            bool precharges = open[rank];
            for (int64_t bank = first; bank < end; bank++) {
                if (!precharges) activate_at[bank] = clock + s.refresh;
                else if (open_row[bank] >= 0) close(clock, bank);
            }
            if (!precharges) counts.refreshes++, due[rank] += s.refresh_interval;
            return true;
        }
        return false;
    }

    void close(int64_t clock, int64_t bank) {
        int64_t rank = rank_of(bank);
        open_row[bank] = -1;
        activate_at[bank] = std::max(activate_at[bank], clock + s.precharge);
        if (!--open[rank]) counts.open_clocks += clock - opened[rank];
    }

    void issue_row(int64_t clock, const DramBurst& burst) {
        int64_t bank = burst.bank;
        if (open_row[bank] >= 0) return close(clock, bank);
        int64_t rank = rank_of(bank), group = group_of(bank);
        counts.activations++;
        open_row[bank] = burst.row, hits[bank] = 0;
        activate_at[bank] = clock + s.row_cycle;
        column_at[bank] = clock + s.activate_to_column;
        precharge_at[bank] = clock + s.row_active;
        for (int64_t g = rank * s.groups; g < (rank + 1) * s.groups; g++) {
            int64_t apart = g == group ? s.activate_long : s.activate_short;
            activate_in[g] = std::max(activate_in[g], clock + apart);
        }
        auto& times = activated[rank];
        times = {times[1], times[2], times[3], clock};
        if (!open[rank]++) opened[rank] = clock;
    }

    void issue_column(int64_t clock, const DramBurst& burst) {
        int64_t bank = burst.bank, group = group_of(bank), rank = rank_of(bank);
        bool write = burst.write;
        auto& bursts = waiting[write][bank];
        bursts.erase(std::find_if(bursts.begin(), bursts.end(), [&](const DramBurst& other) {
            return other.number == burst.number;
        }));
        count[write]--;
        counts.row_hits += hits[bank]++ > 0;
        (write ? counts.writes : counts.reads)++;
        int64_t data = clock + (write ? s.write_latency : s.read_latency) + s.burst;  // its end
        int64_t recovered = write ? data + s.write_recovery : clock + s.read_to_precharge;
        precharge_at[bank] = std::max(precharge_at[bank], recovered);
        auto &same = write ? write_in : read_in, &other = write ? read_in : write_in;
        int64_t back = write ? s.read_latency : s.write_latency;
        for (int64_t g = 0; g < s.ranks * s.groups; g++) {
            bool mine = g / s.groups == rank;
            int64_t apart = g == group ? s.column_long : s.column_short;
            int64_t gap = mine ? std::max(s.burst, apart) : s.burst + s.turnaround;
            int64_t wait = g == group ? s.write_to_read_long : s.write_to_read_short;
            int64_t turned = write && mine ? data + wait : data + s.turnaround - back;
            same[g] = std::max(same[g], clock + gap);
            other[g] = std::max({other[g], turned, clock + 1});
        }
    }
};

class DramDevice {
public:
    using Answer = std::pair<int64_t, int64_t>;  // clock, number of a burst

    explicit DramDevice(const DramNumbers& numbers) : s(numbers) {
        for (int64_t c = 0; c < s.channels; c++) channels.emplace_back(s);
        doors.resize(s.channels);
        next = never;
        for (const DramChannel& channel : channels) next = std::min(next, channel.next);
    }

    int64_t clock = 0, next;
    std::vector<Answer> done;

    void push(int64_t number, int64_t line, bool write) {
        backlog.push_back({number, line, 0, 0, write});
        next = clock;
    }

    bool has_room() const { return static_cast<int64_t>(backlog.size()) < s.window; }

    void advance(int64_t until) {
        while (next < until) {
            clock = std::max(clock, next);
            admit();
            next = never;
            for (int64_t c = 0; c < s.channels; c++) {
                DramBurst gone;
                if (channels[c].next <= clock && channels[c].step(clock, gone)) {
                    finish(gone);
                    refill(c, gone.write, clock + 1);
                }
                next = std::min(next, channels[c].next);
            }
            if (!backlog.empty() && at_door < s.window) next = clock + 1;
        }
        clock = std::max(clock, until);
    }

    DramCounts counts() const {
        DramCounts total;
        for (const DramChannel& channel : channels) {
            DramCounts of = channel.settle(clock);
            total.reads += of.reads, total.writes += of.writes, total.row_hits += of.row_hits;
            total.activations += of.activations, total.refreshes += of.refreshes;
            total.open_clocks += of.open_clocks;
        }
        return total;
    }

private:
    const DramNumbers& s;
    std::vector<DramChannel> channels;
    std::deque<DramBurst> backlog;
    std::vector<std::array<std::deque<DramBurst>, 2>> doors;  // by channel: reads, writes
    int64_t at_door = 0;
    std::unordered_map<int64_t, std::vector<int64_t>> reading;  // line to the numbers of its reads
    std::unordered_set<int64_t> pending_writes;

    void admit() {
        while (!backlog.empty() && at_door < s.window) {
            DramBurst burst = backlog.front();
            backlog.pop_front();
            if (pending_writes.count(burst.line)) {
                done.push_back({clock + 1, burst.number});
                continue;
            }
            auto read = reading.find(burst.line);
            if (!burst.write && read != reading.end()) {
                read->second.push_back(burst.number);
                continue;
            }
            if (burst.write) pending_writes.insert(burst.line);
            else reading[burst.line] = {burst.number};
            int64_t channel = locate(burst);
            doors[channel][burst.write].push_back(burst);
            at_door++;
            refill(channel, burst.write, clock);
        }
    }

    void refill(int64_t c, bool write, int64_t from) {
        auto& door = doors[c][write];
        while (!door.empty() && channels[c].has_room(write)) {
            channels[c].add(from, door.front());
            if (write) done.push_back({from + 1, door.front().number});
            door.pop_front();
            at_door--;
        }
    }

    void finish(const DramBurst& burst) {
        if (burst.write) {
            pending_writes.erase(burst.line);
            return;
        }
        auto read = reading.find(burst.line);
        for (int64_t number : read->second)
            done.push_back({clock + s.read_latency + s.burst, number});
        reading.erase(read);
    }

    static int64_t bits(int64_t line, DramNumbers::Field field) {
        return line >> field.first & ((int64_t{1} << field.width) - 1);
    }

    static int64_t fold(int64_t value, int64_t width) {
        int64_t folded = 0;
        for (; value && width > 0; value >>= width) folded ^= value & ((int64_t{1} << width) - 1);
        return folded;
    }

    // Set the burst's bank and row by AddressMap.locate; return its channel.
    int64_t locate(DramBurst& burst) const {
        int64_t channel = bits(burst.line, s.channel);
        int64_t group = bits(burst.line, s.rank) << s.group.width | bits(burst.line, s.group);
        burst.bank = group << s.bank.width | bits(burst.line, s.bank);
        burst.row = bits(burst.line, s.row);
        if (s.hashed) {
            channel ^= fold(burst.row, s.channel.width) ^ fold(burst.bank, s.channel.width);
            burst.bank ^= fold(burst.row, s.rank.width + s.group.width + s.bank.width);
        }
        return channel;
    }
};

class DramSchedule {
public:
    DramSchedule(const DramNumbers& numbers, bool reorder)
        : s(numbers), reorder(reorder), device(s) {}
    DramSchedule(const DramSchedule&) = delete;  // the device refers to the numbers

    void read(int64_t cycle, int64_t number, int64_t address) {
        int64_t first = bursts;
        push(cycle, address, false);
        missing[number] = bursts - first;
        for (int64_t burst = first; burst < bursts; burst++) read_of[burst] = number;
        if (!reorder) order.push_back(number);
    }

    void write(int64_t cycle, int64_t address) { push(cycle, address, true); }

    // Whether a request may be accepted in this cycle.
    bool ready_for(int64_t cycle) {
        device.advance(static_cast<__int128>(cycle) * s.per_cycle / s.per_clock);
        return device.has_room();
    }

    // The number of the read to answer from this cycle on, or -1.
    int64_t answer(int64_t cycle) {
        int64_t clock = static_cast<__int128>(cycle) * s.per_cycle / s.per_clock;
        if (clock > device.next) device.advance(clock);
        for (const auto& done : device.done) arriving.push(done);
        device.done.clear();
        while (!arriving.empty() && arriving.top().first <= clock) {
            last = arriving.top().first;
            auto read = read_of.find(arriving.top().second);
            arriving.pop();
            if (read == read_of.end()) continue;
            if (!--missing[read->second]) {
                missing.erase(read->second);
                ready.push(read->second);
            }
            read_of.erase(read);
        }
        if (ready.empty() || (!reorder && ready.top() != order.front())) return -1;
        int64_t number = ready.top();
        ready.pop();
        if (!reorder) order.pop_front();
        return number;
    }

    // As DramUse: clocks, elapsed, counts.
    void use(int64_t* figures) const {
        DramCounts of = device.counts();
        int64_t clocks = first < 0 ? 0 : std::max<int64_t>(0, last - first);
        int64_t values[] = {clocks,      device.clock,   of.reads,     of.writes,
                            of.row_hits, of.activations, of.refreshes, of.open_clocks};
        std::copy(std::begin(values), std::end(values), figures);
    }

private:
    template <class T> using Earliest = std::priority_queue<T, std::vector<T>, std::greater<T>>;
    DramNumbers s;
    bool reorder;
    DramDevice device;
    int64_t bursts = 0, first = -1, last = 0;
    std::unordered_map<int64_t, int64_t> read_of, missing;  // of a burst; bursts of a read
    Earliest<DramDevice::Answer> arriving;
    Earliest<int64_t> ready;
    std::deque<int64_t> order;  // reads not answered yet

    void push(int64_t cycle, int64_t address, bool write) {
        __int128 end = static_cast<__int128>(cycle + 1) * s.per_cycle;
        device.advance(static_cast<int64_t>((end + s.per_clock - 1) / s.per_clock));
        if (first < 0) first = device.clock;
        int64_t start = address * s.row_bytes;
        for (int64_t line = start / s.line; line <= (start + s.row_bytes - 1) / s.line; line++)
            device.push(bursts++, line, write);
    }
};
