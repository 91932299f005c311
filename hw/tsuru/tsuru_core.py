"""Attention that finds its rows by codes of few bits, and reads those finer: the sixth design."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring

from hw.attention.decode_core import DecodeCore
from hw.attention.row_port import RowPort
from hw.attention.step_sequence import StepSequence
from hw.stream.combine import copy, fork, join, merge
from hw.stream.queue import Queue, QueueParameters
from hw.stream.sequential_reader import SequentialReader
from hw.tsuru.core_cycles import BATCHES, RESTS, ROWS
from hw.tsuru.core_parameters import TsuruCoreParameters as TsuruCoreParameters
from hw.tsuru.core_parameters import Work as Work
from hw.tsuru.rest_rows import RestGroup
from hw.tsuru.row_choice import RowChoice
from hw.tsuru.row_search import PLANES, RowSearch
from hw.tsuru.row_store import RowStore
from hw.tsuru.row_supply import RowSupply


class TsuruCore(DecodeCore[TsuruCoreParameters]):
    """o_h = sum over chosen j of p_hj v_j + p_hR mean v,   p_h = softmax of (q_h k_j, ln R_h).

    ::

        q ─────────┬────────────────────────────────────────────────────────→ lanes ─→ o
                   ↓                                                            ↑
        memory ─→ search: estimates ─→ choice: rows, rest ─→ supply: K, rest, V ┘
          ↑                                                     ↑↓
        kv: codes of new rows                                 memory

    A step is one token: its command; for each kv head the words of its new row; for each query head
    its row q, which the host has multiplied by the scale of scores. All rows are rotated by the
    host (:class:`hw.tsuru.rotation.Rotation`), K less a mean that is the same for all rows, and o
    is still rotated. The words are those of :class:`hw.tsuru.row_store.RowStore`: codes and scales
    of K and V, the mean of V of the rows after the sinks, and K and V of a sink as they are.

    For each batch of up to `parallel` heads of a kv head all search codes are read; rows whose
    estimated probability is above 2^-``threshold`` for any of the heads are read with their fine
    codes, and so are the sinks and the newest row. All other rows are one row more, whose score is
    the logarithm of their estimated sum, and whose value is the mean of V. See
    :class:`hw.tsuru.row_search.RowSearch`, :class:`hw.tsuru.row_choice.RowChoice`,
    :class:`hw.tsuru.row_supply.RowSupply` and :class:`hw.tsuru.rest_rows.RestGroup`.

    Errors: a command that does not fit is refused, as by
    :class:`hw.baseline.dense_core.DenseCore`, and so is a token more than `tokens`. A head's o is
    ``invalid`` if the score of a row that was read was NaN or plus infinity (o is then NaN), or all
    were minus infinity. A row that was not finite has a scale that says so: it is always read, and
    a NaN. The mean of V is not checked.

    Latency and throughput: a batch of n chosen rows after s sinks reads ceil(l / 8) +
    ceil(l / 2 d) search words, with l slots, n rows, those beyond `kept` twice, and 2 s + 1 words.
    While lanes are at a batch, rows of the next one are chosen and those of the one after are
    searched, so the port is busy: about 1.1 cycles a word and 100 a kv head, as long as chosen rows
    are at most as many as search words. `cycles` is exact, by the control of all parts. This holds
    for a memory that answers within about `depth` cycles.

    Handshake: ``kv`` words transfer with the requests that write them. ``request.valid`` depends
    combinationally on ``kv.valid``, and ``kv.ready`` on ``request.ready``; ``response.ready`` is
    always high. A query is accepted by the search and by a queue, up to two batches before its
    result. While an ``o`` is not accepted, its lane stalls. The report follows the last row of V.

    Examples
    --------
    Three kv heads of 1000 rows, of which every tenth is chosen:

    >>> from hw.tsuru.tsuru_core import TsuruCoreParameters, Work
    >>> tiles = [1] * 100 + [0] * 25 + [1]
    >>> TsuruCoreParameters().cycles([Work(1000, 9, 3, [tiles] * 3)])
    953
    """

    summary = "A layer's decode step on rows found by codes of two bits, the rest as their mean"
    source = "library"

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.sequence = sequence = StepSequence(p.order)
        m.submodules.store = store = RowStore(p)
        length, threshold = self._steps(m, sequence, store)
        m.submodules.port = port = RowPort(p.memory)
        wiring.connect(m, sequence.store, store.store)
        wiring.connect(m, wiring.flipped(self.kv), store.kv)
        wiring.connect(m, port.request, wiring.flipped(self.request))
        # An address and its word leave together.
        m.d.comb += [
            port.write.valid.eq(store.o.valid),
            port.kv.valid.eq(store.o.valid),
            store.o.ready.eq(port.write.ready),
            store.row.eq(length - 1),
            port.write.payload.eq(store.o.payload.address),
            port.kv.payload.eq(store.o.payload.data),
        ]

        m.submodules.reader = reader = SequentialReader(p.reader, p.row_layout)
        m.submodules.search = search = RowSearch(p.choice)
        m.submodules.choice = choice = RowChoice(p.choice)
        m.submodules.supply = supply = RowSupply(p.supply)
        m.submodules.lanes = lanes = RestGroup(p.rows)
        self._batches(m, sequence, length, threshold, reader, search, choice, supply, lanes)
        self._reads(m, port, reader, supply)

        # Queries wait for their turn in the lanes, up to those of a batch in the search, and of one
        # whose rows are chosen.
        size = QueueParameters(depth=2 * p.parallel)
        m.submodules.queries = queries = Queue(size, shape=p.row_layout)
        fork(m, "query", self.q, [search.q, queries.i])
        m.submodules.chosen = chosen = Queue(
            QueueParameters(depth=ROWS), shape=p.choice.rows_layout
        )
        m.submodules.rests = rests = Queue(QueueParameters(depth=RESTS), shape=p.choice.rest_layout)
        m.d.comb += [*copy(search.words.payload, reader.o.payload)]
        join(m, [reader.o], [search.words])
        for source, sink in (
            (search.o, choice.i),
            (queries.o, lanes.q),
            (choice.o, chosen.i),
            (chosen.o, supply.i),
            (choice.rest, rests.i),
            (rests.o, supply.rest),
            (supply.o, lanes.rows),
        ):
            wiring.connect(m, source, sink)
        with m.If(choice.o.valid & choice.o.ready):
            m.d.sync += self._count.eq(self._count + 1)
        wiring.connect(m, lanes.o, wiring.flipped(self.o))
        return m

    def _steps(self, m: Module, sequence, store) -> tuple[Signal, Signal]:
        """The sequence's length, and the step's threshold."""
        p = self.parameters
        command, report = self.command, self.report
        length = Signal(range(p.capacity + 1))
        threshold = Signal.like(command.payload.threshold, reset_less=True)
        self._count = Signal(report.payload.chosen.shape())  # chosen rows of the step
        accepted = join(m, [command], [sequence.command])
        with m.If(accepted & ~sequence.refused):
            m.d.comb += store.restart.eq(command.payload.restart)
            m.d.sync += [
                length.eq(Mux(command.payload.restart, 0, length) + 1),
                threshold.eq(command.payload.threshold),
                self._count.eq(0),
            ]
        m.d.comb += [
            *copy(sequence.command.payload, command.payload),
            sequence.refuse.eq(~command.payload.restart & (length == p.capacity)),
            report.payload.length.eq(length),
            report.payload.chosen.eq(Mux(sequence.error, 0, self._count)),
            report.payload.error.eq(sequence.error),
            sequence.reported.eq(report.valid & report.ready),
        ]
        return length, threshold

    def _batches(
        self, m: Module, sequence, length, threshold, reader, search, choice, supply, lanes
    ) -> None:
        """Each batch to all parts, each of which is at another one."""
        p, run = self.parameters, sequence.run
        sinks = Signal(range(p.sinks + 1))
        slots = Signal(range(p.choice.slots + 1))
        words = Signal(range(p.reader.longest + 1))
        block = p.format.search_rows
        m.d.comb += [
            sinks.eq(Mux(length < p.sinks, length, p.sinks)),
            slots.eq(length + (PLANES - 1) * sinks),
            words.eq(((slots + 7) >> 3) + ((slots + block - 1) >> block.bit_length() - 1)),
        ]
        queues = []
        for name in ("searches", "choices", "supplies", "attentions"):
            queue = Queue(QueueParameters(depth=BATCHES), shape=p.order.batch_layout)
            m.submodules[name] = queue
            queues.append(queue)
            m.d.comb += queue.i.payload.eq(run.payload.batch)
        # A batch's run of K is enough for a parts' order; its run of V passes.
        fork(m, "run", run, [queue.i for queue in queues], [~run.payload.value] * len(queues))
        searches, choices, supplies, attentions = (queue.o for queue in queues)
        fork(m, "search", searches, [reader.command, search.batch])
        join(m, [choices], [choice.batch])
        join(m, [supplies], [supply.batch])
        join(m, [attentions], [lanes.batch])
        m.d.comb += [
            reader.command.payload.address.eq(
                Cat(Const(0, p.row_bits + 1), searches.payload.kv_head)
            ),
            reader.command.payload.words.eq(words),
            search.batch.payload.heads.eq(searches.payload.heads),
            search.batch.payload.slots.eq(slots),
            choice.batch.payload.heads.eq(choices.payload.heads),
            choice.batch.payload.slots.eq(slots),
            choice.batch.payload.threshold.eq(threshold),
            supply.batch.payload.kv_head.eq(supplies.payload.kv_head),
            supply.batch.payload.sinks.eq(sinks),
            supply.batch.payload.more.eq(length > p.sinks),
            *copy(lanes.batch.payload, attentions.payload),
        ]
        # The report waits for the rows, not for the results: by then none is read any more.
        finished = Signal()
        with m.If(lanes.batch.valid & lanes.batch.ready & lanes.batch.payload.last):
            m.d.sync += finished.eq(1)
        with m.If(self.report.valid & self.report.ready):
            m.d.sync += finished.eq(0)
        m.d.comb += self.report.valid.eq(finished | sequence.error)

    def _reads(self, m: Module, port, reader, supply) -> None:
        """Requests of the search and of the supply, and their responses by the tag's upper bit."""
        read, response = port.read, self.response
        # Lanes wait for chosen rows; the search of the next batch has the cycles between.
        of_supply = merge(m, supply.request, reader.request, read)
        tags = len(reader.request.payload.tag)
        m.d.comb += [
            read.payload.tag.eq(
                Cat(
                    Mux(of_supply, supply.request.payload.tag, reader.request.payload.tag),
                    of_supply,
                )
            ),
            read.payload.address.eq(
                Mux(of_supply, supply.request.payload.address, reader.request.payload.address)
            ),
            response.ready.eq(1),
        ]
        for part, number in ((reader, 0), (supply, 1)):
            m.d.comb += [
                part.response.valid.eq(response.valid & (response.payload.tag[tags] == number)),
                part.response.payload.tag.eq(response.payload.tag[:tags]),
                part.response.payload.data.eq(response.payload.data),
            ]
