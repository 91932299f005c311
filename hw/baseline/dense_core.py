"""A layer's attention over all tokens of a sequence: the reference of every comparison."""

import dataclasses

from amaranth.hdl import Module, Mux, Signal

from hw.attention.decode_core import DecodeCore, connect_rows
from hw.attention.streamed_rows import StreamedParameters, StreamedRows
from hw.stream.combine import copy, join


@dataclasses.dataclass(frozen=True)
class DenseCoreParameters(StreamedParameters):
    """
    d, capacity, heads, kv_heads, depth
        See :class:`hw.attention.streamed_rows.StreamedParameters`.
    parallel
        Number of query heads of a kv head that share the rows read, 1 to `heads`. There are as many
        lanes, each with d multipliers and a softmax unit.
    """

    parallel: int = 1

    @classmethod
    def presets(cls) -> dict[str, "DenseCoreParameters"]:
        return {
            "small": cls(d=8, capacity=32, heads=4, kv_heads=2, depth=8),
            "grouped": cls(d=8, capacity=32, heads=6, kv_heads=2, depth=8, parallel=3),
            "default": cls(),
            "paper": cls(d=128, capacity=4096, heads=32, kv_heads=8, depth=64, parallel=4),
        }


class DenseCore(DecodeCore[DenseCoreParameters]):
    """o_h = sum over j of p_hj v_j,   p_h = softmax over j of q_h k_j,   for heads h of one layer.

    ::

        q ───────────────────────────────→ lanes ─→ o
        kv ─→ memory ─→ reader ─→ K, V ─→   │  ↑
                                     scores └→ softmax

    A step is one token: its command; for each kv head its row of K, then its row of V; for each
    query head its row q, which the host has multiplied by the scale. The new rows are written after
    the rows of the tokens before. Then all rows of K are read for each query head, and all rows of
    V; with `parallel` lanes, once for up to as many query heads of a kv head. Nothing is pruned and
    nothing is evicted. Prompts are run in the same way, a token a step.

    Each row of K gives a score, less the head's first finite one; each row of V is added to the sum
    when its probability leaves the softmax. See :class:`hw.attention.streamed_rows.StreamedRows`
    for the parts and for the addresses of rows.

    Errors: a command that does not fit is refused: no heads or an empty group, more heads than
    `heads`, or than kv_heads times its group, or a token more than the memory has rows for. It is
    answered by a report with ``error``; it accepts no rows of q and kv, has no o and changes no
    state, and its ``restart`` has no effect. A head's o is ``invalid`` if one of its scores was NaN
    or plus infinity (o is then NaN), or all were minus infinity (probabilities are 0).

    Latency: `latency` + 2 l cycles from a head's first key to its o, with l >= 8 tokens, less with
    fewer; that is 2 l + 46 with d = 128. Throughput: a batch of g query heads reads 2 l rows, and
    its first key follows the last row of V of the batch before after max(3, g + 1) cycles; a step
    adds 5 + 2 kv heads cycles before its first key. This holds for a memory that answers within
    `depth` - 3 cycles.

    Handshake: ``kv`` rows transfer with the requests that write them; a ``q`` row is accepted when
    its first key is there. ``request.valid`` depends combinationally on ``kv.valid``, and
    ``kv.ready`` on ``request.ready``; ``response.ready`` is always high. While an ``o`` is not
    accepted, its lane stalls. The report follows the last row of V, and the next command is
    accepted after the report.

    Examples
    --------
    >>> from hw.baseline.dense_core import DenseCoreParameters
    >>> step = 256, 9, 3  # tokens, query heads, and how many of them share a kv head
    >>> DenseCoreParameters().cycles([step])
    4967
    >>> DenseCoreParameters(parallel=3).cycles([step])
    1677
    """

    summary = "A layer's decode step over all tokens: streaming softmax attention, nothing pruned"
    source = "library"

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.rows = rows = StreamedRows(p)
        connect_rows(m, self, rows)

        # The sequence's length: a step adds a token, whose rows go after the others.
        length = Signal(range(p.capacity + 1))
        command, report = self.command.payload, self.report
        accepted = join(m, [self.command], [rows.command])
        with m.If(accepted & ~rows.refused):
            m.d.sync += length.eq(Mux(command.restart, 0, length) + 1)
        join(m, [rows.done], [report])
        # A token's row is its position: nothing is evicted, so no map is needed.
        m.d.comb += [
            *copy(rows.command.payload, command),
            # A dense cache only grows: beyond its capacity a token is refused, as dropping a row
            # would no longer be the reference.
            rows.refuse.eq(~command.restart & (length == p.capacity)),
            rows.length.eq(length),
            rows.row.eq(length - 1),
            report.payload.length.eq(length),
            report.payload.error.eq(rows.done.payload.error),
        ]
        return m
