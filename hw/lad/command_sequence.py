"""The tile's commands: checked, and dealt head by head to EAS, or to prefetch and linear layers."""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value

from hw.component import Component
from hw.lad.head_stores import HELD
from hw.lad.linear import linear_layout
from hw.lad.prefetch import prefetch_layout
from hw.lad.scores.score_source import score_command_layout
from hw.lad.tile_parameters import PIECES, VPUS, LadTileParameters
from hw.layout import FLAG
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


class CommandSequence(Component[LadTileParameters]):
    """A command's heads, in order, each when there is a store for its scores.

    ::

        command ─→ check ─→ step: heads ─→ EAS ┄ identified ┄→ next head ─→ … ─→ all settled
                     ├→ prefetch: heads ─→ Prefetch
                     └→ linear layer ─→ Linear

    A command that does not fit (see :class:`hw.lad.lad_tile.LadTile`) is refused: it changes
    nothing but that `error` is high for a cycle. A command before the first `restart` since reset
    is `invalid`.

    Cycles: a command of h heads takes ceil(h / `group`) + 2 to its first head.
    """

    def ports(self) -> Ports:
        p = self.parameters
        ports: dict[str, Any] = {
            "command": stream_in(p.command_layout),
            "n": wire_out(p.number, "Number of positions of the command, 1 with `restart`."),
            "heads": wire_out(range(p.heads + 1), "Number of heads of the command."),
            "restart": wire_out(FLAG, "The command begins a sequence."),
            "invalid": wire_out(FLAG, "No sequence has begun since reset."),
            "error": wire_out(1, "A command is refused; high for a cycle."),
            "head": stream_out(score_command_layout(p)),
            "identified": wire_in(1, "EAS has finished a head."),
            "release": wire_in(1, "A head's store is free again."),
            "settled": wire_in(
                1, "Nothing is left of heads whose stores have been released, and no report."
            ),
            "empty": wire_out(1, "Rows that were loaded ahead are out of date."),
        }
        if p.prefetch:
            ports["prefetch"] = stream_out(
                prefetch_layout(p),
                "Heads whose rows are loaded ahead; only with `prefetch`.",
            )
            ports["prefetching"] = wire_in(1, "Rows are being loaded ahead.")
        if p.weights:
            ports["linear"] = stream_out(
                linear_layout(p),
                "Linear layers; only with `weights`.",
            )
            ports["multiplying"] = wire_in(1, "A linear layer is under way.")
        return ports

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        job = Signal(p.command_layout, reset_less=True)
        begun = Signal()  # a sequence, since reset
        head = Signal(range(p.heads + 1))
        kv_head = Signal(p.kv_head_index)
        place = Signal(range(max(2, p.heads)))  # among the heads of the kv head
        next_head = Signal()
        used = Signal(range(HELD + 1))  # stores
        command = self.head
        begins = command.valid & command.ready
        m.d.sync += used.eq(used + begins - self.release)
        m.d.comb += [
            self.n.eq(job.n),
            self.heads.eq(job.heads),
            self.restart.eq(job.restart),
            self.invalid.eq(~begun),
            command.payload.head.eq(head),
            command.payload.kv_head.eq(kv_head),
            command.payload.n.eq(job.n),
            command.payload.first.eq(place == 0),
        ]
        with m.If(next_head):
            m.d.sync += [head.eq(head + 1), place.eq(place + 1)]
            with m.If(place + 1 == job.group):
                m.d.sync += [place.eq(0), kv_head.eq(kv_head + 1)]

        covered = Signal(range(2 * p.heads + 1))  # heads of the kv heads counted
        with m.FSM():
            with m.State("IDLE"):
                # A command is checked as it is accepted; its heads are counted from 0.
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [x.eq(0) for x in (head, kv_head, place, covered)]
                with m.If(self.command.valid):
                    m.next = "COUNT"
                    self._accept(m, job, begun)
            with m.State("COUNT"):
                # Heads of one kv head after the other, until all heads of the command are covered.
                with m.If(covered >= job.heads):
                    m.next = "HEAD"
                    if p.prefetch:
                        with m.If(job.prefetch != 0):
                            m.next = "PREFETCH"
                with m.Else():
                    m.d.sync += covered.eq(covered + job.group)
            with m.State("REFUSED"):
                # A command that cannot be computed is reported and changes nothing.
                m.d.comb += self.error.eq(1)
                m.next = "REPORT"
            with m.State("REPORT"):
                with m.If(self.settled):
                    m.next = "IDLE"
            with m.State("HEAD"):
                # A head begins when there is a store for its scores.
                with m.If(head == job.heads):
                    m.next = "FINISH"
                with m.Elif(used != HELD):
                    m.d.comb += command.valid.eq(1)
                    with m.If(command.ready):
                        m.next = "SCORES"
            with m.State("SCORES"):
                # EAS has one head at a time.
                with m.If(self.identified):
                    m.d.comb += next_head.eq(1)
                    m.next = "HEAD"
            with m.State("FINISH"):
                # The next command reads what this one writes, so all of it must be written.
                with m.If((used == 0) & self.settled):
                    m.d.comb += self.empty.eq(1)
                    m.next = "IDLE"
            if p.prefetch:
                self._prefetch_state(m, job, head, kv_head, next_head)
            if p.weights:
                self._linear_states(m, job)
        return m

    def _prefetch_state(self, m: Module, job, head, kv_head, next_head: Signal) -> None:
        ahead = self.prefetch
        with m.State("PREFETCH"):
            # Every head's rows are loaded, one head after the other; then the rows still on their
            # way are waited for.
            m.d.comb += [
                ahead.payload.head.eq(head),
                ahead.payload.kv_head.eq(kv_head),
                ahead.payload.n.eq(job.n),
                ahead.payload.most.eq(job.prefetch),
            ]
            with m.If(head != job.heads):
                m.d.comb += [ahead.valid.eq(1), next_head.eq(ahead.ready)]
            with m.Elif(~self.prefetching):
                m.next = "IDLE"

    def _linear_states(self, m: Module, job) -> None:
        p, layer = self.parameters, self.linear
        fits = Signal(name="layer_fits")
        with m.State("LINEAR"):
            # Its numbers are checked a cycle after the others, because of their product. The layer
            # is idle, so that it accepts its command in one cycle.
            m.d.comb += [
                fits.eq(
                    (job.heads != 0)
                    & (job.heads <= min(VPUS, p.heads))
                    & (job.pieces <= PIECES)
                    & (job.rows != 0)
                    & (job.row + job.rows * job.pieces <= p.weights)
                ),
                layer.valid.eq(fits),
                layer.payload.vectors.eq(job.heads),
                layer.payload.pieces.eq(job.pieces),
                layer.payload.row.eq(job.row),
                layer.payload.rows.eq(job.rows),
            ]
            m.next = "PRODUCTS"
            with m.If(~fits):
                m.next = "REFUSED"
        with m.State("PRODUCTS"):
            # The layer has all VPUs until its last row is output.
            with m.If(~self.multiplying):
                m.next = "IDLE"

    def _accept(self, m: Module, job, begun: Signal) -> None:
        """A new command: a step, unless it says otherwise."""
        p = self.parameters
        offered = self.command.payload
        # The first token of a sequence is position 0, whatever `n` is.
        bad_n = (offered.n == 0) | (offered.n > p.positions)
        layer: Value = offered.pieces != 0 if p.weights else Const(0)
        ahead: Value = (offered.prefetch != 0) & ~layer if p.prefetch else Const(0)
        begins = offered.restart & ~layer & ~ahead
        m.d.sync += [job.eq(offered), job.n.eq(Mux(begins, 1, offered.n))]
        with m.If(p.order.misfits(offered) | (bad_n & ~begins)):
            m.next = "REFUSED"
        with m.Else():
            m.d.sync += begun.eq(begun | begins)
            # Rows loaded ahead are kept for one step of the same sequence.
            m.d.comb += self.empty.eq(ahead | begins)
        if p.weights:
            with m.If(layer):
                m.next = "LINEAR"
