"""The order of a decode step: check the command, write the new rows, read the rows of each head."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data

from hw.attention.head_order import HeadOrder, HeadOrderParameters
from hw.component import Component
from hw.layout import FLAG, index
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.combine import copy


def store_layout(p: HeadOrderParameters) -> data.StructLayout:
    """A new row: of V if ``value``, else of K; of a ``token`` if a step may have several."""
    token = {"token": index(range(p.tokens))} if p.tokens > 1 else {}
    return data.StructLayout({"value": FLAG, "kv_head": index(p.head_bits)} | token)


def run_layout(p: HeadOrderParameters) -> data.StructLayout:
    """A run of rows to read, of V if ``value``, else of K, and the ``batch`` that reads them; the
    step's ``tokens`` if it may have several."""
    return data.StructLayout({"value": FLAG, "batch": p.batch_layout} | p.tokens_field)


class StepSequence(Component[HeadOrderParameters]):
    """The order of a step, for all cores that read whole rows of K and V.

    ::

        IDLE ─→ STORE ─→ READ ─→ REPORT ─→ IDLE
          │       │        │       └ until the core's last report is accepted
          │       │        └ for each batch of heads: a run of K, a run of V; in turns of
          │       │          up to `ahead` heads: their runs of K, then their runs of V
          │       └ for each kv head, for each token: the new row of K, the new row of V
          └───→ REFUSED ─→ IDLE

    The sequence knows neither addresses nor lengths: the core says where rows are, and may delay
    `store` until a row has its place.

    Errors: a command that does not fit (:meth:`HeadOrderParameters.fits`) is refused, and so is any
    command while `refuse` is high. It has no rows.

    Latency: 1 cycle from a command to its first `store`. Throughput: a row of `store`, or a run, a
    cycle.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.step_layout, "Steps."),
            "refuse": wire_in(1, "The core refuses the command that is offered."),
            "refused": wire_out(1, "The command that is offered is refused."),
            "error": wire_out(1, "The report of a refused command is due."),
            "reporting": wire_out(
                1, "All runs have been accepted, so reports of the step may pass."
            ),
            "reported": wire_in(
                1,
                "The last report of the step, or of the refused command, is accepted in this "
                "cycle.",
            ),
            "store": stream_out(store_layout(p), "New rows, K and V in turn."),
            "run": stream_out(run_layout(p), "Runs of rows of K and V."),
        }

    def elaborate(self, platform):
        m = Module()
        p, command, store, run = self.parameters, self.command, self.store, self.run
        m.submodules.order = order = HeadOrder(p)  # of rows to store, and of runs of V
        m.submodules.keys = keys = HeadOrder(p)  # of runs of K
        step = Signal(p.step_layout, reset_less=True)
        value = Signal()  # the new row is of V; runs are of V until all of the turn's are
        batch = order.o.payload
        # The new row is of the step's last token.
        final = self._tokens(m, step, value) if p.tokens > 1 else value
        # Two passes over the step's heads: rows are stored for all kv heads first, then read for
        # each batch, so no read of a step can overtake the write of its new token.
        offered = command.payload
        m.d.comb += [
            self.refused.eq(p.misfits(offered) | self.refuse),
            store.payload.value.eq(value),
            store.payload.kv_head.eq(batch.kv_head),
        ]

        with m.FSM(name="phase"):
            with m.State("IDLE"):
                m.d.comb += [
                    command.ready.eq(1),
                    order.i.valid.eq(command.valid & ~self.refused),
                    # First pass: one batch for each kv head, to store its rows.
                    order.i.payload.whole.eq(1),
                    *copy(order.i.payload, offered),
                ]
                # The step is kept for the second pass over its heads.
                m.d.sync += step.eq(offered)
                with m.If(command.valid):
                    m.next = "STORE"
                    with m.If(self.refused):
                        m.next = "REFUSED"
            with m.State("REFUSED"):
                # A step that cannot be computed is reported and changes nothing.
                m.d.comb += self.error.eq(1)
                with m.If(self.reported):
                    m.next = "IDLE"
            with m.State("STORE"):  # each kv head
                # A row of K and a row of V.
                m.d.comb += [store.valid.eq(1), order.o.ready.eq(store.ready & final)]
                with m.If(store.ready):
                    m.d.sync += value.eq(~value)
                    with m.If(final & batch.last):
                        m.next = "READ"
                # The heads are gone through once more, now batch by batch.
                for walk in (order, keys):
                    m.d.comb += [
                        walk.i.valid.eq(store.ready & final & batch.last),
                        *copy(walk.i.payload, step),
                    ]
            with m.State("READ"):  # each batch of heads
                self._read(m, order.o, keys.o, value)
                with m.If(run.ready & run.payload.value & batch.last):
                    m.next = "REPORT"
            with m.State("REPORT"):
                # The next step waits for the report, because its rows may replace some that are
                # still being read.
                m.d.comb += self.reporting.eq(1)
                with m.If(self.reported):
                    m.next = "IDLE"
        return m

    def _tokens(self, m: Module, step, value: Signal) -> Signal:
        """Count the tokens of a kv head's new rows; whether the row is the last one's, of V."""
        store = self.store
        final = Signal()
        token = Signal(range(self.parameters.tokens))
        m.d.comb += [
            final.eq(value & (token + 1 == step.tokens)),
            store.payload.token.eq(token),
            self.run.payload.tokens.eq(step.tokens),
        ]
        with m.If(store.valid & store.ready & value):
            m.d.sync += token.eq(Mux(final, 0, token + 1))
        return final

    def _read(self, m: Module, values, keys, value: Signal) -> None:
        """Runs of K while their heads fit in the turn, then the runs of V of these heads."""
        p, run = self.parameters, self.run
        waiting = Signal(range(max(p.parallel, p.ahead) + 1))  # heads with K and without V
        more = Signal()  # another run of K belongs to this turn
        is_value = Signal()
        m.d.comb += [
            more.eq(keys.valid & ((waiting == 0) | (waiting + keys.payload.heads <= p.ahead))),
            run.valid.eq(1),
            is_value.eq(value | ~more),
            run.payload.value.eq(is_value),
            keys.ready.eq(run.ready & ~is_value),
            values.ready.eq(run.ready & is_value),
            *copy(run.payload.batch, keys.payload),
        ]
        with m.If(is_value):
            m.d.comb += copy(run.payload.batch, values.payload)
            with m.If(run.ready):
                # The next turn begins when no head waits any more.
                m.d.sync += [
                    waiting.eq(waiting - values.payload.heads),
                    value.eq(waiting != values.payload.heads),
                ]
        with m.Elif(run.ready):
            m.d.sync += waiting.eq(waiting + keys.payload.heads)
