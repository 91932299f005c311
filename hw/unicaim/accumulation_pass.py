"""A pass over all accumulations of a kv head, a word of them a cycle."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, memory

from hw.arith.bits.carry_save import add_rows
from hw.arith.datapath import Registers
from hw.component import Component
from hw.ports import Ports, wire_in, wire_out
from hw.unicaim.core_parameters import STAGES, UnicaimCoreParameters

FLAGS = data.StructLayout({"valid": 1, "moves": 1, "scans": 1, "adds": 1})
"""What accompanies a word: it is one, as the ports have it, and it adds to an earlier sum."""


class AccumulationPass(Component[UnicaimCoreParameters]):
    """Sum a group's scores, and share them with the accumulations, `accumulators` rows a cycle.

    ::

        cycle   0          1        2            3                    4
        scores ─→ register ─→ + ─→ sums (not the group's last query)
                   sums ──────┘   └─→ share ─→ stored, sum of word ─→ total
                   held ──────────────┘         lowest of word ─────→ lowest

    A word's accumulations come a cycle after it, in offset binary. The sums of a group's queries
    are in a memory until its last query moves the accumulations. A pass that `scans` has no scores
    and moves nothing. `total` and `lowest` are of the rows in use and of all rows, STAGES cycles
    after the last word, of which no word of another pass may be one.

    Throughput: a word a cycle.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "valid": wire_in(1, "A word."),
            "word": wire_in(range(p.words), "Its number, from 0 up in each pass."),
            "scores": wire_in(unsigned(p.accumulators * p.score_bits), "A query's."),
            "moves": wire_in(1, "The query is its group's last."),
            "scans": wire_in(1, "There is no query."),
            "used": wire_in(range(p.rows + 1), "Rows in use, the first ones."),
            "held": wire_in(unsigned(p.accumulators * p.accumulator.width), "A cycle later."),
            "store": wire_out(1, "Replace the word `stored_word` by `stored`."),
            "stored_word": wire_out(range(p.words)),
            "stored": wire_out(unsigned(p.accumulators * p.accumulator.width)),
            "total": wire_out(p.accumulation_total, "Sum of the accumulations."),
            "lowest": wire_out(range(p.rows), "The row with the smallest, the first of several."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        lanes, width, sum_bits = p.accumulators, p.accumulator.width, p.group_sum.sum_bits
        begun = Signal()  # a query of this group has been summed
        with m.If(self.valid & ~self.scans & (self.word == p.words - 1)):
            m.d.sync += begun.eq(~self.moves)
        # A word's flags and number accompany it through the stages.
        flags = [Signal(FLAGS, name=f"flags_{number}") for number in range(STAGES)]
        words: list[Value] = [self.word]
        m.d.comb += [
            flags[0].valid.eq(self.valid),
            flags[0].moves.eq(self.moves & ~self.scans),
            flags[0].scans.eq(self.scans),
            flags[0].adds.eq(begun),
        ]
        for number in range(1, STAGES):
            word = Signal.like(self.word, name=f"word_{number}")
            m.d.sync += [flags[number].eq(flags[number - 1]), word.eq(words[-1])]
            words.append(word)

        shape = unsigned(lanes * sum_bits)
        m.submodules.sums = sums = memory.Memory(shape=shape, depth=p.words, init=[])
        read, write = sums.read_port(), sums.write_port()
        scores = Signal.like(self.scores, reset_less=True)
        summed = Signal(shape, reset_less=True)
        before = Signal.like(self.held, reset_less=True)
        moved = Signal.like(self.held, reset_less=True)
        summed_now, moved_now = [], []
        for lane in range(lanes):
            score = scores.word_select(lane, p.score_bits).as_signed()
            earlier = read.data.word_select(lane, sum_bits).as_signed()
            summed_now.append((score + Mux(flags[1].adds, earlier, 0))[:sum_bits])
            at = before.word_select(lane, width)
            target = summed.word_select(lane, sum_bits)
            moved_now.append(Mux(flags[2].scans, at, self._shared(m, lane, at, target)))
        m.d.comb += [
            read.en.eq(self.valid),
            read.addr.eq(self.word),
            write.addr.eq(words[2]),
            write.data.eq(summed),
            # A group's last sum moves the accumulations at once and is not needed again.
            write.en.eq(flags[2].valid & ~flags[2].moves & ~flags[2].scans),
            self.store.eq(flags[3].valid & flags[3].moves),
            self.stored_word.eq(words[3]),
            self.stored.eq(moved),
        ]
        m.d.sync += [
            scores.eq(self.scores),
            summed.eq(Cat(summed_now)),
            before.eq(self.held),
            moved.eq(Cat(moved_now)),
        ]
        rows = [moved.word_select(lane, width) for lane in range(lanes)]
        self._reduce(m, rows, words[3], flags[4].valid, words[4])
        return m

    def _shared(self, m: Module, lane: int, held: Value, value: Value) -> Signal:
        """An accumulation moved towards a sum of scores by a share of the distance."""
        p = self.parameters.accumulator
        # | inverted sign | sum | 0 … 0, `fraction` of them |
        target = Signal(p.width, name=f"target_{lane}")
        distance = Signal(signed(p.width + 1), name=f"distance_{lane}")
        shared = Signal(p.width, name=f"shared_{lane}")
        half = (1 << p.share) >> 1  # rounds half up
        m.d.comb += [
            target.eq(Cat(Const(0, p.fraction), value[:-1], ~value[-1])),
            distance.eq(target - held),
            shared.eq(held + ((distance + half) >> p.share)),
        ]
        return shared

    def _reduce(
        self, m: Module, rows: list[Value], word: Value, valid: Value, word_after: Value
    ) -> None:
        """Sum and lowest of a word, then those of the words so far, a cycle later."""
        p = self.parameters
        lanes = len(rows)
        lane_bits = (lanes - 1).bit_length()
        # Rows from `used` on hold what an earlier sequence left there.
        in_use = [Cat(Const(lane, lane_bits), word) < self.used for lane in range(lanes)]
        part = Signal(range(lanes * ((1 << p.accumulator.width) - 1) + 1), reset_less=True)
        terms = [row & use.replicate(len(row)) for use, row in zip(in_use, rows, strict=True)]
        m.d.sync += part.eq(add_rows(m, terms, len(part), Registers(m, (), None)))
        # Each node of the tree is the lower one of two, the first one if they are equal.
        nodes: list[tuple[Value, Value]] = [
            (row, Const(lane, lane_bits)) for lane, row in enumerate(rows)
        ]
        while len(nodes) > 1:
            pairs = zip(nodes[::2], nodes[1::2], strict=True)
            nodes = [_lower(m, first, second) for first, second in pairs]
        [(value, lane)] = nodes
        of_word = Signal(p.accumulator.width, reset_less=True)
        of_lane = Signal(lane_bits, reset_less=True)
        m.d.sync += [of_word.eq(value), of_lane.eq(lane)]

        least = Signal.like(of_word)
        first = word_after == 0
        with m.If(valid):
            m.d.sync += self.total.eq(part + Mux(first, 0, self.total))
            # Strictly below: of equal ones the first stays, as in the search over bit planes.
            with m.If(first | (of_word < least)):
                m.d.sync += [least.eq(of_word), self.lowest.eq(Cat(of_lane, word_after))]


def _lower(m: Module, first: tuple[Value, Value], second: tuple[Value, Value]) -> tuple:
    """The lower one of two numbers with their places."""
    later = Signal(name="later")
    m.d.comb += later.eq(second[0] < first[0])
    return tuple(Mux(later, b, a) for a, b in zip(first, second, strict=True))
