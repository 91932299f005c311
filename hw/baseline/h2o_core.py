"""A layer's attention over heavy hitters and recent tokens (H2O): eviction's usual baseline."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data

from hw.attention.decode_core import DecodeCore, connect_rows
from hw.attention.streamed_rows import StreamedParameters, StreamedRows
from hw.baseline.heavy_hitters import HeavyHitters, HeavyHittersParameters
from hw.layout import count, index
from hw.stream.combine import copy, join


@dataclasses.dataclass(frozen=True)
class H2oCoreParameters(StreamedParameters):
    """
    d, capacity, heads, kv_heads, depth
        See :class:`hw.attention.streamed_rows.StreamedParameters`. The capacity includes the new
        token, so at most capacity - 1 tokens are kept from step to step.
    sum_bits, position_bits
        See :class:`hw.baseline.heavy_hitters.HeavyHittersParameters`.
    """

    sum_bits: int = 12
    position_bits: int = 24

    def __post_init__(self):
        super().__post_init__()
        _ = self.hitters  # built here, as it checks its own

    @classmethod
    def presets(cls) -> dict[str, "H2oCoreParameters"]:
        return {
            "small": cls(8, 16, 4, 2, 8, sum_bits=2, position_bits=6),
            "default": cls(),
            "paper": cls(128, 4096, 32, 32, 64),
        }

    @cached_property
    def hitters(self) -> HeavyHittersParameters:
        return HeavyHittersParameters(
            self.kv_heads, self.capacity, self.sum_bits, self.position_bits
        )

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """A step of ``heads``, ``group`` on each kv head; ``restart`` begins a sequence.

        ``target`` tokens are kept from step to step, among them the ``recent`` newest.
        """
        fields = {name: field.shape for name, field in super().command_layout}
        number = count(range(self.capacity))
        return data.StructLayout(fields | {"target": number, "recent": number})

    @cached_property
    def report_layout(self) -> data.StructLayout:
        """``length``: number of rows of the step; ``rows``: the row that the step's token has, of
        each kv head; ``error``: the command was refused."""
        fields = {name: field.shape for name, field in super().report_layout}
        rows = data.ArrayLayout(index(self.row_bits), self.kv_heads)
        return data.StructLayout(fields | {"rows": rows})


class H2oCore(DecodeCore[H2oCoreParameters]):
    """o_h = sum over j of p_hj v_j over the rows kept, p_h = softmax over j of q_h k_j; the next
    token replaces the row with the least S_j = sum of p_hj over steps and the heads of a kv head.

    ::

        q ───────────────────────────────→ lane ─→ o
        kv ─→ memory ─→ reader ─→ K, V ─→   │ ↑
                 ↑                   scores └→ softmax ─→ probabilities ─→ sums
                 └─────────────── row of the new token ─────────────────────┘

    A step is one token, as in :class:`hw.baseline.dense_core.DenseCore`, and so are its rows, its
    results and its refusals. The first `target` + 1 tokens of a sequence take rows in turn. From
    then on, the new token takes the row of the token that each kv head evicts: at the end of the
    step before, the row with the least sum of probabilities since it was written, over all heads of
    the kv head; of equal ones the oldest token. The `recent` newest tokens are not evicted, and the
    step's own token is one of them.

    The first command of a sequence gives its `target` and `recent`.

    Errors: these commands are refused too: the first of a sequence if its target is 0 or less than
    its `recent`; another one with other heads or another group than the first, because rows and
    sums would be missing; the token after 2^position_bits. See
    :class:`hw.baseline.heavy_hitters.HeavyHitters` for sums.

    Latency and throughput: as :class:`DenseCore` with one lane, of target + 1 rows at most. The row
    to evict is found while the sums are made, and costs no cycle.

    Examples
    --------
    >>> from hw.baseline.h2o_core import H2oCoreParameters
    >>> H2oCoreParameters().cycles([(129, 9, 3)])  # 128 tokens kept and the new one
    2681
    >>> [name for name, _ in H2oCoreParameters().command_layout]
    ['restart', 'heads', 'group', 'target', 'recent']
    """

    summary = "A layer's decode step that keeps heavy hitters and recent tokens"
    source = "H2O, section 4"

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.rows = rows = StreamedRows(p)
        m.submodules.hitters = hitters = HeavyHitters(p.hitters)
        connect_rows(m, self, rows)

        # The sequence: a step adds a token, which takes a free row while there is one.
        command, report = self.command.payload, self.report.payload
        length = Signal(range(p.capacity + 1))
        target, recent = (Signal(range(p.capacity), name=name) for name in ("target", "recent"))
        full = Signal()  # the token replaces another one
        position = Signal(p.position_bits)
        exhausted = Signal(init=1)  # no position is left
        first = Signal(p.order.step_layout, reset_less=True)  # heads and group of the sequence
        # Sums of probabilities belong to kv heads, so a sequence must keep its heads and groups.
        other = (first.heads != command.heads) | (first.group != command.group)
        bad = (command.target == 0) | (command.recent > command.target)
        m.d.comb += [
            *copy(rows.command.payload, command),
            rows.refuse.eq(Mux(command.restart, bad, other | exhausted)),
        ]
        last = (1 << p.position_bits) - 2  # position of the last token but one
        with m.If(join(m, [self.command], [rows.command]) & ~rows.refused):
            with m.If(command.restart):
                m.d.sync += copy(first, command)
                m.d.sync += [target.eq(command.target), recent.eq(command.recent)]
                m.d.sync += [length.eq(1), full.eq(0), position.eq(0), exhausted.eq(0)]
            # The cache fills to `target` + 1 rows: the one that leaves is known only after the new
            # token's step, so its row is replaced in the step after that (H2O, Algorithm 1, one
            # step late).
            with m.Else():
                m.d.sync += [full.eq(length > target), position.eq(position + 1)]
                m.d.sync += [length.eq(length + (length <= target)), exhausted.eq(position == last)]

        # The new row's place, which the report tells.
        new = rows.new
        row = Signal(p.row_bits)
        placed = Signal(p.report_layout["rows"].shape)
        chosen, kept = (Array(x[n] for n in range(p.kv_heads)) for x in (hitters.victim, placed))
        m.d.comb += [
            row.eq(Mux(full, chosen[new.kv_head], length - 1)),
            rows.length.eq(length),
            rows.row.eq(row),
            hitters.new.valid.eq(rows.stored & new.value),
            hitters.new.row.eq(row),
            hitters.new.kv_head.eq(new.kv_head),
        ]
        # Victims differ between kv heads, since each has its own sums; the report names all of
        # them.
        with m.If(hitters.new.valid):
            m.d.sync += kept[new.kv_head].eq(row)

        # Probabilities go to the sums as their rows of V are used.
        m.d.comb += [
            hitters.use.valid.eq(rows.used),
            hitters.use.p.eq(rows.p[0]),
            hitters.use.kv_head.eq(rows.batch.kv_head),
            hitters.use.final.eq(rows.batch.final),
            hitters.position.eq(position),
            hitters.recent.eq(recent),
        ]
        join(m, [rows.done], [self.report])
        m.d.comb += [
            report.length.eq(length),
            report.rows.eq(placed),
            report.error.eq(rows.done.payload.error),
        ]
        return m
