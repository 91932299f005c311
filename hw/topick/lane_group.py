"""The lanes of a head and what they share (Token-Picker, Fig. 6)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring

from hw.component import Component
from hw.layout import count
from hw.ports import Ports, stream_in, stream_out, wire_in
from hw.stream import combine
from hw.stream.queue import Queue, QueueParameters
from hw.topick.baseline_lane import BaselineLane
from hw.topick.chunk_buffer import ChunkBuffer
from hw.topick.core_parameters import TopickCoreParameters
from hw.topick.dag import Dag
from hw.topick.lane_port import LanePort
from hw.topick.pe_lane import PeLane
from hw.topick.probability_generator import ProbabilityGenerator
from hw.topick.row_buffer import RowBuffer
from hw.topick.sum_join import SumJoin
from hw.topick.token_order import TokenOrder

HEADS_LEAVING = 2
"""Heads whose sums may be on their way out."""


class LaneGroup(Component[TopickCoreParameters]):
    """o = sum over the kept tokens of p v, for one head after the other.

    ::

                  ┌────────── log2 of the denominator ───────────┐
                  ↓                                              │
        query ─→ PeLane ─→ differences ────────────────────────→ Dag
                 ↑ │ │ ↑                                          │ log2, at the end of step 0
                 │ │ │ └─ values ──┐                              ↓
                 │ │ └─→ decided ─ ProbabilityGenerator ←─────────┘
                 │ └──────────────────│───────────────→ SumJoin ─→ o
                LanePort ←── requests ┘
                 ↑↓ memory

    Step 0 of a head begins in all of its lanes at once, as soon as step 0 of the head before has
    ended in all of them and its denominator is known. Lanes of which the head has no token take no
    part in it. Step 1 begins when the generators have finished step 1 of the head before; it
    overlaps step 0 of the next head.

    A head begins only if each generator has room for all tokens of its lane, so that a token's last
    decision never waits for room. Otherwise the lane could wait for a generator whose values wait
    for the lane.

    In a block of a prompt each lane has a kv head's rows loaded into a :class:`RowBuffer` first;
    then the queries of all its heads and tokens run on them, on whole rows in place of chunks, each
    on the rows that its token sees. The next kv head's rows are loaded when the last of these
    queries has read its last value.
    """

    def ports(self) -> Ports:
        p = self.parameters
        lanes = p.lanes_per_head
        ports = {
            "begin": wire_in(1, "A command begins: no row is buffered."),
            "tokens": wire_in(count(range(p.tokens + 1)), "Tokens of the command of ``query``."),
            "threshold": wire_in(p.command_layout["threshold"].shape, "The same command's."),
            "query": stream_in(p.head_layout),
            "request": stream_out(p.memory.read_layout).array(lanes),
            "response": stream_in(p.memory.response_layout).array(lanes),
            "decided": stream_out(p.report_layout).array(lanes),
            "o": stream_out(p.head_output_layout),
        }
        if p.block > 1:
            ports["whole"] = wire_in(1, "The command is a block of a prompt.")
        if p.observe:
            ports["observed"] = stream_out(p.lane.observed_layout, "Only with `observe`.").array(
                lanes
            )
        return ports

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        numbers = range(p.lanes_per_head)
        m.submodules.dag = dag = Dag(p.dag)
        m.submodules.join = join = SumJoin(p.lanes_per_head, p.d, p.bits, p.probability_bits)
        queue = Queue(QueueParameters(depth=HEADS_LEAVING), shape=p.label_layout)
        m.submodules.heads = queue
        # The baseline lane has the same ports and prunes nothing, for comparison.
        lanes = [(PeLane if p.pruning else BaselineLane)(p.lane) for _ in numbers]
        orders = [TokenOrder(p.row_bits, first=number == 0) for number in numbers]
        generators = [ProbabilityGenerator(p.probability_generator) for _ in numbers]
        ports = [LanePort(p) for _ in numbers]
        for number in numbers:
            m.submodules[f"lane_{number}"] = lanes[number]
            m.submodules[f"order_{number}"] = orders[number]
            m.submodules[f"generator_{number}"] = generators[number]
            m.submodules[f"port_{number}"] = ports[number]

        # The heads in step 0, between the steps, and in step 1.
        scored = Signal(p.label_layout)
        waiting = Signal(p.label_layout)
        key_head, waiting_head, value_head = (
            Signal(p.kv_head_index, name=name) for name in ("key_kv", "waiting_kv", "value_kv")
        )
        starting = Signal()  # step 0
        scoring_ends = Signal()
        between = Signal()  # a head is between the steps
        handing = Signal()  # step 1 starts
        buffers, ends = [], []
        for number in numbers:
            lane, generator, port = lanes[number], generators[number], ports[number]
            # Step 0: tokens in the lane's order, chunks of K, decisions. Step 1: kept entries,
            # chunks of V, weighted sums.
            wiring.connect(m, lane.request, port.key_request)
            wiring.connect(m, port.key_response, lane.response)
            wiring.connect(m, generator.request, port.value_request)
            wiring.connect(m, port.value_response, generator.response)
            wiring.connect(m, generator.value, lane.value)
            wiring.connect(m, lane.o, join.i[number])
            wiring.connect(m, lane.difference, dag.difference[number])
            m.d.comb += [port.key_head.eq(key_head), port.value_head.eq(value_head)]
            if p.pruning:
                m.d.comb += [
                    lane.log_denominator.valid.eq(1),
                    lane.log_denominator.payload.eq(dag.denominator),
                ]
            buffers.append(self._connect_memory(m, number, port))
            ends.append(self._report(m, number, lane, generator, scored))

        # Three heads may be under way: one in step 0, one between the steps, one in step 1.
        room = self._start(m, lanes, orders, generators, starting)
        idle = Signal()  # no head is in step 0
        if p.block > 1:
            room = room & self._load(m, buffers, generators, idle & ~between)
        self._score(m, dag, ends, room, starting, between, scoring_ends, idle)
        with m.If(starting):
            m.d.sync += [
                Value.cast(scored).eq(self._label(self.query.payload)),
                key_head.eq(self.query.payload.kv_head),
            ]
        with m.If(scoring_ends):
            m.d.sync += [waiting.eq(scored), waiting_head.eq(key_head)]
        with m.If(handing):
            m.d.sync += value_head.eq(waiting_head)
        self._hand_over(m, dag, generators, queue, scoring_ends, between, handing)
        if p.block == 1:
            self._forget(m, buffers, starting, handing, key_head, waiting_head, value_head)

        # Sums and head numbers leave together.
        m.d.comb += [
            queue.i.payload.eq(waiting),
            *combine.copy(self.o.payload, join.o.payload),
            self._label(self.o.payload).eq(queue.o.payload),
        ]
        combine.join(m, [join.o, queue.o], [self.o])
        return m

    def _connect_memory(self, m: Module, number: int, port: LanePort):
        """Requests and responses of a lane, through a buffer if there is one, which is returned."""
        p = self.parameters
        request = wiring.flipped(self.request[number])
        response = wiring.flipped(self.response[number])
        if not p.buffer_tokens and p.block == 1:
            wiring.connect(m, port.request, request)
            wiring.connect(m, response, port.response)
            return None
        buffer = ChunkBuffer(p.chunk_buffer) if p.buffer_tokens else RowBuffer(p)
        m.submodules[f"buffer_{number}"] = buffer
        wiring.connect(m, port.request, buffer.request)
        wiring.connect(m, buffer.memory_request, request)
        wiring.connect(m, response, buffer.memory_response)
        wiring.connect(m, buffer.response, port.response)
        return buffer

    def _report(self, m: Module, number: int, lane, generator, scored) -> Value:
        """A token's last decision: a beat of ``decided``, and an entry if the token is kept.

        Returns whether it is the head's last one in this lane.
        """
        p = self.parameters
        decided, beat = self.decided[number], lane.decided.payload
        accepted = Signal(name=f"decided_{number}")
        m.d.comb += [
            # The generator has room: see `_start`.
            accepted.eq(lane.decided.valid & decided.ready),
            lane.decided.ready.eq(decided.ready),
            decided.valid.eq(lane.decided.valid),
            decided.payload.head.eq(scored.head),
            decided.payload.token.eq(Cat(Const(number, p.share_bits), beat.token)),
            decided.payload.chunk.eq(beat.chunk),
            decided.payload.kept.eq(beat.kept),
            decided.payload.last.eq(beat.last),
            generator.kept.valid.eq(accepted & beat.kept),
            generator.kept.payload.row.eq(beat.token),
            generator.kept.payload.t.eq(beat.t),
        ]
        if p.contexts > 1:
            m.d.comb += decided.payload.context.eq(scored.context)
        if p.block > 1:
            # A block decides nothing, so nothing is reported and no lane waits for it.
            with m.If(self.whole):
                m.d.comb += [
                    decided.valid.eq(0),
                    lane.decided.ready.eq(1),
                    accepted.eq(lane.decided.valid),
                ]
        if p.observe:
            wiring.connect(m, lane.observed, wiring.flipped(self.observed[number]))
        return accepted & beat.last

    def _start(self, m: Module, lanes, orders, generators, starting: Signal) -> Value:
        """Commands for the lanes; returns whether there is room for all tokens. No lane has an
        undecided token then, because a head starts when the one before has been scored."""
        p = self.parameters
        rooms = []
        newest = Signal(range(p.tokens))  # token
        tokens = self._tokens()
        m.d.comb += newest.eq(tokens - 1)
        for number, (lane, order, generator) in enumerate(
            zip(lanes, orders, generators, strict=True)
        ):
            rows = Signal(range(p.rows + 1), name=f"rows_{number}")  # tokens in this lane
            is_newest = Signal(name=f"is_newest_{number}")
            command = lane.command.payload
            m.d.comb += [
                # Token i is in lane i mod lanes_per_head, so lanes differ by one token at most.
                rows.eq(self._rows(tokens, number)),
                is_newest.eq(newest[: p.share_bits] == number),
                order.start.eq(starting),
                order.tokens.eq(rows),
                order.newest.eq(is_newest),
                order.take.eq(lane.token.ready),
                # The lane takes as many tokens as its command says.
                lane.token.valid.eq(1),
                lane.token.payload.eq(order.row),
                # A lane without tokens takes part in no head.
                lane.command.valid.eq(starting),
                command.threshold.eq(self.threshold),
                command.tokens.eq(rows),
                command.exempt.eq(is_newest),
            ]
            m.d.comb += [
                getattr(command, name).eq(getattr(self.query.payload, name))
                for name in ("q", "mantissa", "shift", "most", "least")
            ]
            if p.block > 1:
                m.d.comb += command.whole.eq(self.whole)
            room = Signal(name=f"room_{number}")
            m.d.comb += room.eq(generator.level + rows <= p.rows)
            rooms.append(room)
        return Cat(rooms).all()

    def _label(self, payload) -> Value:
        """What says whose query it is."""
        return Cat(getattr(payload, name) for name, _ in self.parameters.label_layout)

    def _tokens(self) -> Value:
        """The tokens that the query sees: of a block, those up to its own."""
        if self.parameters.block == 1:
            return self.tokens
        return self.query.payload.token + 1

    def _rows(self, tokens: Value, number: int) -> Value:
        """How many of the tokens are in a lane."""
        p = self.parameters
        return (tokens + p.lanes_per_head - 1 - number) >> p.share_bits

    def _load(self, m: Module, buffers, generators, idle: Value) -> Value:
        """Load the rows of a block's kv head into all buffers, when no head needs others.

        Returns whether the query's rows are there, or none are needed.

        idle
            No head is in step 0 or waits for step 1.
        """
        p = self.parameters
        filled = Signal()  # with this command's rows of a kv head
        filled_head = Signal(p.kv_head_index)
        present = Signal()
        loading = Signal()
        done = Cat(generator.start.ready for generator in generators).all()
        m.d.comb += [
            present.eq(filled & (filled_head == self.query.payload.kv_head)),
            loading.eq(self.whole & self.query.valid & ~present & idle & done),
        ]
        with m.If(loading):
            m.d.sync += [filled.eq(1), filled_head.eq(self.query.payload.kv_head)]
        with m.If(self.begin):
            m.d.sync += filled.eq(0)
        for number, buffer in enumerate(buffers):
            m.d.comb += [
                buffer.whole.eq(self.whole),
                buffer.load.valid.eq(loading),
                buffer.load.payload.kv_head.eq(self.query.payload.kv_head),
                # All tokens, of which the block's last query sees every one.
                buffer.load.payload.rows.eq(self._rows(self.tokens, number)),
            ]
        return ~self.whole | (present & Cat(buffer.load.ready for buffer in buffers).all())

    def _score(self, m, dag, ends, room, starting, between, scoring_ends, idle) -> None:
        """Step 0 of one head after the other."""
        p = self.parameters
        # A lane's last differences leave at the latest with its last decision.
        settling = Signal(range(p.dag.latency + 1))  # cycles until the denominator has them
        ended = Signal(p.lanes_per_head)  # lanes without an undecided token
        has_rows = Cat(self._tokens() > number for number in range(p.lanes_per_head))
        with m.FSM():
            with m.State("IDLE"):
                # A head starts when all lanes can take it.
                m.d.comb += starting.eq(self.query.valid & room)
                m.d.comb += self.query.ready.eq(room)
                if p.block > 1:
                    m.d.comb += idle.eq(1)
                with m.If(starting):
                    m.d.sync += ended.eq(~has_rows)
                    m.next = "STEP_0"
            with m.State("STEP_0"):
                # Lanes end independently; each reports its last decision once.
                m.d.sync += ended.eq(ended | Cat(ends))
                with m.If((ended | Cat(ends)).all()):
                    m.d.sync += settling.eq(p.dag.latency)
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                # The last difference passes the adder tree before the logarithm is read; then the
                # head waits until the place between the steps is free.
                with m.If(settling != 0):
                    m.d.sync += settling.eq(settling - 1)
                with m.Elif(~between):
                    m.d.comb += scoring_ends.eq(1)
                    m.next = "IDLE"
        # All differences are in the sum. The next head's lanes start in the next cycle at the
        # earliest, and decide for the first time when the clear has passed the pipeline: a chunk is
        # requested 3 cycles after a start, and decided on 6 or more after its request.
        m.d.comb += dag.clear.eq(scoring_ends)

    def _hand_over(self, m, dag, generators, queue, scoring_ends, between, handing) -> None:
        """A head waits between the steps until the generators have finished the one before."""
        p = self.parameters
        log2 = Signal.like(dag.denominator.log2)
        free = Cat(generator.start.ready for generator in generators).all()
        m.d.comb += [
            handing.eq(between & free & queue.i.ready),
            queue.i.valid.eq(handing),
        ]
        with m.If(scoring_ends):
            m.d.sync += between.eq(1)
            # Unknown if all kept terms are below the limbs of a larger one, now pruned.
            known = dag.denominator.known
            m.d.sync += log2.eq(Mux(known, dag.denominator.log2, 0))
        # All generators start together, because they share the logarithm.
        with m.Elif(handing):
            m.d.sync += between.eq(0)
        for number, generator in enumerate(generators):
            # How many of the ring's entries belong to the head.
            kept = Signal(range(p.rows + 1), name=f"kept_{number}")  # in step 0
            count = Signal(range(p.rows + 1), name=f"count_{number}")  # of the head that waits
            with m.If(scoring_ends):
                m.d.sync += [count.eq(kept), kept.eq(0)]
            with m.Elif(generator.kept.valid):
                m.d.sync += kept.eq(kept + 1)
            m.d.comb += [
                generator.start.valid.eq(handing),
                generator.start.payload.log2.eq(log2),
                generator.start.payload.count.eq(count),
            ]
            if p.block > 1:
                m.d.comb += generator.start.payload.whole.eq(self.whole)

    def _forget(self, m, buffers, starting, handing, key_head, waiting_head, value_head) -> None:
        """Keep rows of a kv head in the buffers while its query heads follow one another."""
        # Nothing of this command is buffered yet.
        keys = Signal(init=1)
        values = Signal(init=1)
        new_keys = starting & (keys | (key_head != self.query.payload.kv_head))
        new_values = handing & (values | (value_head != waiting_head))
        # A new command has written a new row of every kv head, so nothing buffered is valid.
        with m.If(self.begin):
            m.d.sync += [keys.eq(1), values.eq(1)]
        with m.If(starting):
            m.d.sync += keys.eq(0)
        with m.If(handing):
            m.d.sync += values.eq(0)
        for buffer in buffers:
            if buffer is not None:
                m.d.comb += [
                    buffer.clear.valid.eq(new_keys | new_values),
                    buffer.clear.payload.keys.eq(new_keys),
                    buffer.clear.payload.values.eq(new_values),
                ]
