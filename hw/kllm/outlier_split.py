"""Finds a vector's outliers and scale, and outputs it with them marked (KLLM, III-D and IV)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, memory

from hw.arith.float_format import FP16
from hw.component import Component
from hw.kllm.orizuru import Orizuru, OrizuruParameters
from hw.layout import FLAG, count, mask, position
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out

ONE = 0x3C00


@dataclasses.dataclass(frozen=True)
class OutlierSplitParameters(Parameters):
    """
    k
        K: values of the longest vector, 2 to 65536.
    outliers
        Outliers at each end of a vector.
    lanes
        Values in one beat, a power of two.
    """

    k: int = 576
    outliers: int = 3
    lanes: int = 16

    def __post_init__(self):
        # A value must be left beside an end's outliers.
        require(2 <= self.k <= 1 << 16, "k must be between 2 and 65536", self.k)
        fits = 1 <= self.outliers < self.k
        require(fits, f"outliers must be between 1 and k - 1 = {self.k - 1}", self.outliers)
        _ = self.orizuru  # checks lanes

    @classmethod
    def presets(cls) -> dict[str, "OutlierSplitParameters"]:
        return {
            "small": cls(k=22, outliers=2, lanes=4),
            "default": cls(),
            "paper": cls(k=4096, outliers=21),
        }

    @cached_property
    def orizuru(self) -> OrizuruParameters:
        return OrizuruParameters(self.k, self.outliers + 1, self.lanes)

    @property
    def beats(self) -> int:
        """Beats of the longest vector."""
        return -(-self.k // self.lanes)

    @property
    def search(self) -> int:
        """Cycles from a vector's last beat accepted to its scale, with the most outliers."""
        return self.search_of(self.outliers)

    def search_of(self, outliers: int) -> int:
        """Cycles from a vector's last beat accepted to its scale being offered."""
        return self.orizuru.latency + max(1, outliers) + 1

    @property
    def latency(self) -> int:
        """Cycles from a vector's last input beat to its first output beat."""
        return self.search + 1

    def cycles(self, beats: list[int], outliers: list[int]) -> int:
        """Cycles from the first beat offered to the last one accepted, when nothing stalls.

        beats, outliers
            Number of beats of each vector, and of its outliers at each end.
        """
        searches = [self.search_of(count) for count in outliers]
        return sum(2 * count + search for count, search in zip(beats, searches, strict=True))

    @cached_property
    def count_layout(self):
        """Outliers at each end of a vector; more than `outliers` count as `outliers`."""
        return count(range(self.outliers + 1))

    @cached_property
    def input_layout(self) -> data.StructLayout:
        """``values`` in order of position, mask ``keep`` of the vector's own, ``last`` beat."""
        values = data.ArrayLayout(FP16, self.lanes)
        return data.StructLayout({"values": values, "keep": mask(self.lanes), "last": FLAG})

    @cached_property
    def output_layout(self) -> data.StructLayout:
        """A beat of the vector, with the masks of its inliers, ``keep``, and of its outliers."""
        values, lanes = data.ArrayLayout(FP16, self.lanes), mask(self.lanes)
        return data.StructLayout({"values": values, "keep": lanes, "outlier": lanes, "last": FLAG})

    @cached_property
    def pair_layout(self) -> data.StructLayout:
        """One pair of outliers.

        ``max``, ``min``: index and value, and ``repeated`` if the same element is in an earlier
        pair, or is this pair's ``max`` (for ``min``); ``present`` as in :class:`Orizuru`; ``last``
        pair of the vector. A vector without outliers has one pair that is not ``present``.
        """
        end = data.StructLayout({"index": position(range(self.k)), "value": FP16, "repeated": FLAG})
        return data.StructLayout({"max": end, "min": end, "present": FLAG, "last": FLAG})


class OutlierSplit(Component[OutlierSplitParameters]):
    """Find the largest and smallest values of a vector, and output it with them marked.

    ::

        x ─┬─→ Orizuru ─→ pairs ─┬─→ outliers
           │                     ├─→ marks ─┐
           │                     └─→ scale  │
           └─→ buffer ──────────────────────┴─→ o

    The first n pairs of :class:`Orizuru` are the outliers of a vector that has n at each end.
    One more pair holds the extremes of the inliers; the larger of their magnitudes is the vector's
    scale, or 1 if it is 0. A vector with a kept infinity or NaN has the quiet NaN as its scale. A
    vector of at most 2 n values has no inliers, unless some values are equal: ties go to the lower
    index at both ends, so an element may be among the largest and the smallest of a vector of any
    length. Its second appearance is ``repeated``.

    A vector ends with ``last`` or with the beat that makes it K long; positions from K on are not
    kept.

    Latency: the scale is offered depth + max(1, n) + 3 cycles after a vector's last beat was
    accepted, the vector's first beat one cycle later. Throughput: a vector of B beats every 2 B +
    depth + max(1, n) + 3 cycles; the next is accepted after this one's last beat was output.

    Handshake: ``o.valid``, ``scale.valid`` and all payloads of `o` depend on registers only. A
    vector's last beat waits for its `wanted`, which is accepted with it. A vector is output whether
    or not its scale was accepted, but the scale of the next one waits for that. Overflow: none.

    Examples
    --------
    >>> from hw.kllm.outlier_split import OutlierSplitParameters
    >>> parameters = OutlierSplitParameters(k=576, outliers=3, lanes=16)
    >>> parameters.beats, parameters.search
    (36, 9)
    >>> parameters.cycles([36, 36], [3, 0])  # two vectors, the second one without outliers
    160
    """

    summary = "Outliers and scale of a vector, and the vector with them marked"
    source = "KLLM, sections III-D and IV"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "x": stream_in(p.input_layout, "Vectors."),
            "wanted": stream_in(p.count_layout, "Outliers at each end of each vector."),
            "outliers": stream_out(
                p.pair_layout, "The pairs that are outliers, max(1, n) of them for each vector."
            ),
            "scale": stream_out(FP16, "FP16, one for each vector."),
            "o": stream_out(p.output_layout, "The vectors, with inliers and outliers marked."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.finder = finder = Orizuru(p.orizuru)
        row = data.StructLayout(
            {"values": self.x.payload.values.shape(), "keep": self.x.payload.keep.shape()}
        )
        m.submodules.buffer = buffer = memory.Memory(
            shape=unsigned(row.size), depth=p.beats, init=[]
        )
        put, get = buffer.write_port(), buffer.read_port()

        # Each beat goes to Orizuru and into the buffer.
        filling = Signal()
        sending = Signal()
        beat = Signal(range(p.beats))
        final = Signal(range(p.beats))  # the vector's last beat
        fire = Signal()
        vector_end = Signal()
        inside = Signal(p.lanes)  # lanes below K
        special = Signal()  # an infinity or NaN in this beat
        invalid = Signal()  # an infinity or NaN in the vector
        allowed = Signal()  # the beat may be accepted
        number = Signal(range(p.outliers + 1))  # of outliers at each end
        rest = p.k - (p.beats - 1) * p.lanes
        kept = self.x.payload.keep & inside
        exponents = [value[FP16.mantissa : -1].all() for value in self.x.payload.values]
        m.d.comb += [
            inside.eq(Mux(beat == p.beats - 1, (1 << rest) - 1, (1 << p.lanes) - 1)),
            # All ones in the exponent: infinity or NaN.
            special.eq((kept & Cat(exponents)).any()),
            # The number of outliers is needed with the last beat and not before.
            allowed.eq(filling & (self.wanted.valid | ~vector_end)),
            finder.i.valid.eq(self.x.valid & allowed),
            self.x.ready.eq(finder.i.ready & allowed),
            fire.eq(self.x.valid & self.x.ready),
            self.wanted.ready.eq(fire & vector_end),
            number.eq(at_most(self.wanted.payload, p.outliers)),
            vector_end.eq(self.x.payload.last | (beat == p.beats - 1)),
            finder.i.payload.values.eq(self.x.payload.values),
            finder.i.payload.keep.eq(kept),
            finder.i.payload.last.eq(vector_end),
            # One pair more than the outliers: its values are the largest and smallest inliers,
            # which give the scale.
            finder.i.payload.k.eq(number + 1),
            put.en.eq(fire),
            put.addr.eq(beat),
            put.data.eq(Cat(self.x.payload.values.as_value(), kept)),
        ]
        marks = Signal(p.beats * p.lanes)  # positions of outliers
        sent = self._send(m, get, sending, final, marks)
        searching = Signal()
        pairs = Signal.like(number)  # pairs of outliers still to be found
        blank = Signal()  # the vector has none, and the pair that says so is not accepted
        with m.If(fire & vector_end):
            m.d.sync += [pairs.eq(number), blank.eq(number == 0)]
        done = self._search(m, finder, searching, invalid, sent, marks, pairs, blank)
        # An infinity or NaN in any beat makes the scale NaN.
        with m.If(fire):
            m.d.sync += [
                beat.eq(Mux(vector_end, 0, beat + 1)),
                invalid.eq(special | (invalid & beat.any())),
                final.eq(beat),
            ]
        self._phases(m, fire & vector_end, done, sent, filling, searching, sending)
        return m

    @staticmethod
    def _phases(
        m: Module,
        stored: Value,
        done: Signal,
        sent: Signal,
        filling: Signal,
        searching: Signal,
        sending: Signal,
    ) -> None:
        """One vector at a time: fill the buffer, search its outliers and scale, send it."""
        with m.FSM():
            with m.State("FILL"):
                # The vector is stored, because its outliers are known only after its last beat.
                m.d.comb += filling.eq(1)
                with m.If(stored):
                    m.next = "SEARCH"
            with m.State("SEARCH"):
                # Outliers leave as they are found; the scale ends the search.
                m.d.comb += searching.eq(1)
                with m.If(done):
                    m.next = "SEND"
            with m.State("SEND"):
                # The vector leaves again, with the outliers marked.
                m.d.comb += sending.eq(1)
                with m.If(sent):
                    m.next = "FILL"

    def _search(
        self,
        m: Module,
        finder: Orizuru,
        searching: Signal,
        invalid: Signal,
        sent: Signal,
        marks: Signal,
        pairs: Signal,
        blank: Signal,
    ) -> Signal:
        """Mark the outliers and compute the scale; returns whether the scale is stored now.

        Orizuru offers pairs only between a vector's last beat and its scale.
        """
        p = self.parameters
        pair = finder.o.payload
        wanted = Signal()  # the pair is of outliers, not of inliers
        present = Signal()
        free = Signal()  # the scale register is
        marked = Signal()
        done = Signal()
        largest = Signal(FP16.width - 1)
        ends = [Signal(p.beats * p.lanes, name=f"mark_{end}") for end in ("max", "min")]
        tops = [pair[end].value[:-1] for end in ("max", "min")]
        m.d.comb += [
            # All pairs but the last are outliers; a vector without outliers has a blank one.
            wanted.eq(~pair.last | blank),
            free.eq(~self.scale.valid),
            # Pairs are offered while searching only. Stating it lets an induction prove that
            # `marks`, on which `repeated` depends, does not change while a pair is stalled.
            self.outliers.valid.eq(finder.o.valid & wanted & searching),
            marked.eq(self.outliers.valid & self.outliers.ready),
            done.eq(finder.o.valid & ~wanted & free),
            finder.o.ready.eq(Mux(wanted, self.outliers.ready & ~blank, free)),
            present.eq(pair.present & ~blank),
            # With few values left, one value can be the largest and the smallest at once, and is
            # then listed once.
            self.outliers.payload.max.repeated.eq((marks & ends[0]).any() & present),
            self.outliers.payload.min.repeated.eq(((marks | ends[0]) & ends[1]).any() & present),
            self.outliers.payload.present.eq(present),
            self.outliers.payload.last.eq((pairs == 1) | blank),
            largest.eq(Mux(tops[0] > tops[1], tops[0], tops[1])),
        ]
        for mark, end in zip(ends, ("max", "min"), strict=True):
            outlier = self.outliers.payload[end]
            m.d.comb += [
                mark.eq(1 << pair[end].index),
                outlier.index.eq(Mux(blank, 0, pair[end].index)),
                outlier.value.eq(Mux(blank, 0, pair[end].value)),
            ]
        # The last pair is known by counting, because Orizuru's last pair are the inliers.
        with m.If(marked):
            m.d.sync += blank.eq(0)
            with m.If(~blank):
                m.d.sync += pairs.eq(pairs - 1)
        # Marks are collected until the vector is sent.
        with m.If(marked & present):
            m.d.sync += marks.eq(marks | ends[0] | ends[1])
        with m.Elif(sent & ~searching):
            m.d.sync += marks.eq(0)
        # The scale: the larger magnitude of the inliers' extremes, 1 for 0.
        with m.If(done):
            number = Mux(largest.any(), largest, Const(ONE, FP16.width))
            m.d.sync += [
                self.scale.valid.eq(1),
                self.scale.payload.eq(Mux(invalid, Const(FP16.quiet_nan, FP16.width), number)),
            ]
        with m.Elif(self.scale.ready):
            m.d.sync += self.scale.valid.eq(0)
        return done

    def _send(self, m: Module, get, sending: Signal, final: Signal, marks: Signal) -> Signal:
        """Output the buffer; returns whether the vector's last beat is accepted."""
        p, o = self.parameters, self.o
        beat = Signal(range(p.beats))
        over = Signal()  # all beats of the vector are read
        read = Signal()
        sent = Signal()
        marked = Signal(p.lanes, reset_less=True)
        kept = Signal(p.lanes)
        m.d.comb += [
            read.eq(sending & ~over & (~o.valid | o.ready)),
            get.en.eq(read),
            get.addr.eq(beat),
            Cat(o.payload.values.as_value(), kept).eq(get.data),
            o.payload.keep.eq(kept & ~marked),
            o.payload.outlier.eq(kept & marked),
            sent.eq(o.valid & o.ready & o.payload.last),
        ]
        # The buffer's read port is the output register of values; marks are read beside it.
        with m.If(~o.valid | o.ready):
            m.d.sync += o.valid.eq(read)
        with m.If(read):
            m.d.sync += [
                marked.eq(Array(marks.word_select(n, p.lanes) for n in range(p.beats))[beat]),
                o.payload.last.eq(beat == final),
                # Stop after the last beat until it has been accepted.
                over.eq(beat == final),
                beat.eq(Mux(beat == final, 0, beat + 1)),
            ]
        with m.Elif(sent):
            m.d.sync += over.eq(0)
        return sent


def at_most(number: Value, most: int) -> Value:
    """The smaller of both; the number itself where its bits hold nothing larger."""
    return number if (1 << len(number)) - 1 <= most else Mux(number > most, most, number)
