"""A tile: attention of a token's heads that reads few of their keys and values (LAD, IV)."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.component import Component
from hw.lad.ac import Ac
from hw.lad.active_fetch import ActiveFetch, fetch_layout
from hw.lad.apid import Apid
from hw.lad.caches.cache_fetch import CacheFetch
from hw.lad.command_sequence import CommandSequence
from hw.lad.eas import Eas, identified_layout
from hw.lad.head_stores import HELD, HeadStores
from hw.lad.linear import Linear
from hw.lad.md import Md
from hw.lad.prefetch import Prefetch
from hw.lad.tile_parameters import LadTileParameters
from hw.lad.tile_port import TilePort
from hw.ports import Ports, stream_in, stream_out
from hw.stream.combine import copy, join
from hw.stream.queue import Queue, QueueParameters

__all__ = ["LadTile", "LadTileParameters"]


class LadTile(Component[LadTileParameters]):
    """o_h = softmax(q_h K) V, piecewise linear, from caches of all positions but the active ones.

    ::

        command, kv, q ─→ Eas ─→ scores, G ─→ Apid ─→ ActiveFetch ─→ Md ─→ Ac ─→ o
                       ↑↓       ↑            ↓        ↑↓          ↓     ↓↑
                     memory     └── counters ┘      memory     G, counters, caches ─→ memory

    A command is one token of a sequence: its number of positions, the new one included; for each kv
    head its rows of K and V; for each query head its row q, times 1 / sqrt d. The heads run one
    after another through six stages: EAS reads G and keys and estimates all scores; APID finds the
    active positions, whose scores have left their mode's interval; their rows and the caches are
    fetched; MD computes their exact scores and changes modes; AC computes the output and updates
    the caches. The scores of one head are computed while the output of the head before it is.

    With `prefetch`, a command may also load rows of positions that were active in the last step, of
    which the next command's heads make use (:class:`Prefetch`). With `weights`, a command may be a
    linear layer of up to six vectors, on the VPUs of all stages (:class:`Linear`): its ``q`` are
    the pieces of the vectors, and its only output is ``y``.

    Beside these and independent of them is the special function module: with `vector_lanes`,
    residual sums and gated products of two vectors (:class:`hw.attention.vector_unit.VectorUnit`);
    with `rotary_pairs`, heads turned by their position
    (:class:`hw.attention.rotary_encoding.RotaryEncoding`); with `normed`, norms of vectors, an
    element a cycle (:class:`hw.attention.special_function_unit.SpecialFunctionUnit`). The paper's
    module has d adders, and the VPUs multiply for it; these units have their own multipliers, so
    that no head or product waits for them.

    ``restart`` begins a sequence. Modes, counters and caches are kept in the memory, whose map is
    :attr:`LadTileParameters.regions`. A command waits until all of the last one's writes have been
    accepted.

    Errors: a command is refused if `n` is 0 or above `positions` without `restart`, or if its heads
    do not fit (:meth:`hw.attention.head_order.HeadOrderParameters.fits`); a linear layer if it has
    no or more than six or `heads` vectors, more than 16 pieces, no rows, or rows beyond `weights`.
    It has no rows, changes nothing, and is answered by one ``report`` with ``error``. Heads before
    the first `restart` after a reset are ``invalid``. An infinite or NaN score of an active
    position, a denominator that is not a number above 0 and an infinite or NaN output make a head
    ``invalid``; no term with a NaN enters the caches.

    Cycles: see docs/lad.md.

    Handshake: ``request`` and ``report`` are registers. A response that was not requested is an
    error of the memory.

    Examples
    --------
    >>> from hw.lad.lad_tile import LadTileParameters
    >>> parameters = LadTileParameters(d=128, positions=4096)
    >>> parameters.cache_rows, parameters.regions["g"].rows, parameters.counter_words
    (263, 32, 16)
    """

    summary = "A token's attention from caches of positions whose scores remain in one interval"
    source = "LAD, section IV and Fig. 4 to 6"

    def ports(self) -> Ports:
        p = self.parameters
        ports = {
            "command": stream_in(p.command_layout, "Steps and linear layers."),
            "kv": stream_in(p.row_layout, "K, then V, of each kv head."),
            "q": stream_in(p.row_layout, "One for each head."),
            **p.memory.ports(),
            "o": stream_out(p.output_layout, "One for each head, in order."),
            "report": stream_out(
                p.report_layout,
                "One for each head, in order, when its caches are written; refused commands.",
            ),
        }
        if p.weights:
            ports["y"] = stream_out(
                p.y_layout, "Only with `weights`: one for each row of a linear layer."
            )
        return ports | p.vector_path.ports()

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.sequence = sequence = CommandSequence(p)
        m.submodules.eas = eas = Eas(p)
        m.submodules.stores = stores = HeadStores(p)
        m.submodules.apid = apid = Apid(p.apid)
        m.submodules.active_fetch = fetch = ActiveFetch(p)
        m.submodules.cache_fetch = cache_fetch = CacheFetch(p)
        m.submodules.md = md = Md(p)
        m.submodules.ac = ac = Ac(p)
        # Two heads are in the tile at once: one in EAS and APID, one in MD and AC (stages 2 and 3,
        # and 5 and 6, of LAD's pipeline).
        m.submodules.scored = scored = Queue(QueueParameters(depth=HELD), shape=_head_layout(p))
        wiring.connect(m, wiring.flipped(self.command), sequence.command)
        self._score(m, sequence, eas, stores, scored, fetch)
        self._select(m, stores, apid, fetch)
        readers: list[Any] = [cache_fetch, eas, fetch]
        if p.prefetch:
            m.submodules.prefetch = prefetch = Prefetch(p)
            readers.append(prefetch)
            _connect_prefetch(m, sequence, prefetch, fetch)
        if p.weights:
            m.submodules.linear = linear = Linear(p)
            readers.append(linear)
            self._connect_linear(m, sequence, linear, (*eas.linear, md.linear, *ac.linear))
        m.submodules.port = port = TilePort(p, len(readers))
        for request, response, block in zip(port.requests, port.responses, readers, strict=True):
            # Blocks that only read have no data to write.
            m.d.comb += copy(request.payload, block.request.payload)
            join(m, [block.request], [request])
            wiring.connect(m, response, block.response)
        wiring.connect(m, port.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), port.response)
        self._attend(m, sequence, stores, scored.o, (fetch, cache_fetch, md, ac), port)
        self._output(m, sequence, ac)
        # Beside the stages: their VPUs are in use by heads or by a linear layer.
        p.vector_path.add_to(m, self)
        return m

    def _score(self, m: Module, sequence, eas: Eas, stores: HeadStores, scored, fetch) -> None:
        """Scores and words of G of one head after the other, to its store and to the queue."""
        p = self.parameters
        command, found = eas.command, eas.identified
        wiring.connect(m, sequence.head, command)
        wiring.connect(m, wiring.flipped(self.kv), eas.kv)
        m.d.comb += eas.q.payload.eq(self.q.payload)
        join(m, [self.q], [eas.q])
        # The sequence shows a head's numbers until EAS has finished it. The fetch may begin with
        # this head's rows before the head in front has left.
        m.submodules.to_fetch = to_fetch = Queue(QueueParameters(depth=HELD), shape=fetch_layout(p))
        wiring.connect(m, to_fetch.o, fetch.command)
        m.d.comb += [
            to_fetch.i.valid.eq(found.valid),
            *copy(to_fetch.i.payload, command.payload),
        ]
        # A head has room in the queues, because it has a store.
        m.d.comb += [
            found.ready.eq(1),
            sequence.identified.eq(found.valid),
            scored.i.valid.eq(found.valid),
            scored.i.payload.head.eq(command.payload.head),
            scored.i.payload.q.eq(eas.query),
            scored.i.payload.scores.eq(found.payload),
            stores.identified.eq(found.valid),
            stores.n.eq(sequence.n),
            stores.m.eq(found.payload.m),
            *(
                getattr(stores, name).eq(getattr(eas, name))
                for name in (
                    *("words_valid", "words_row", "words"),
                    *("score_valid", "score_index", "scores", "score_keep"),
                )
            ),
        ]

    def _select(self, m: Module, stores: HeadStores, apid: Apid, fetch: ActiveFetch) -> None:
        """Scores and words of a store through APID; the active positions to the fetch."""
        wiring.connect(m, stores.command, apid.command)
        wiring.connect(m, stores.beats, apid.i)
        wiring.connect(m, apid.counters, stores.counters)
        entry, active = fetch.entry, apid.o
        position = active.payload.positions[0]
        m.d.comb += [
            entry.payload.last.eq(active.payload.last),
            *copy(entry.payload, position),
        ]
        join(m, [active], [entry])

    def _attend(self, m: Module, sequence, stores: HeadStores, scored, blocks, port) -> None:
        """MD and AC of a head, then its words of G back to memory, and its report.

        The next head begins while AC writes this one's caches.
        """
        p = self.parameters
        fetch, cache_fetch, md, ac = blocks
        current: Any = scored.payload
        wiring.connect(m, fetch.key, md.key)
        wiring.connect(m, fetch.counters, md.counters)
        wiring.connect(m, cache_fetch.cache, ac.cache)
        wiring.connect(m, fetch.rows, ac.rows)
        wiring.connect(m, md.correction, ac.correction)
        wiring.connect(m, ac.written, port.caches)
        wiring.connect(m, md.written, port.counters)
        begins = Signal()
        m.d.comb += [
            *(block.command.valid.eq(begins) for block in (md, ac)),
            # A sequence begins with caches that are not in memory.
            cache_fetch.command.valid.eq(begins & ~sequence.restart),
            cache_fetch.command.payload.eq(current.head),
            cache_fetch.free.eq(ac.free),
            md.command.payload.q.eq(current.q),
            md.command.payload.m.eq(current.scores.m),
            md.command.payload.n.eq(sequence.n),
            ac.command.payload.q.eq(current.q),
            ac.command.payload.m.eq(current.scores.m),
            ac.command.payload.clear.eq(sequence.restart),
            ac.command.payload.invalid.eq(sequence.invalid),
        ]
        # Heads whose rows are written: MD's is the one in front, AC's may be the one before.
        head_of_ac = Signal(p.head_index, reset_less=True)
        m.d.comb += [port.counter_head.eq(current.head), port.cache_head.eq(head_of_ac)]
        with m.If(ac.settled):
            m.d.sync += head_of_ac.eq(current.head)
        self._finish(m, sequence, stores, scored, (fetch, md, ac), port.words, begins)

    def _finish(
        self, m: Module, sequence, stores: HeadStores, scored, blocks, words, begins: Signal
    ) -> None:
        """A head begins when AC accepts it; after MD its words of G go to memory.

        words
            The port's stream for rows of G.
        """
        p = self.parameters
        fetch, md, ac = blocks
        current: Any = scored.payload
        # Registers, or a write of counters that has to wait would stall APID in the same cycle. MD
        # is idle only after its last word has been written.
        m.d.sync += [
            stores.md_valid.eq(md.g_valid),
            stores.md_index.eq(md.g_index),
            stores.md_word.eq(md.g_word),
        ]
        # The fetch has finished with this head, and may have with the next one.
        shape = fetch.fetched.payload.shape()
        m.submodules.fetched = queue = Queue(QueueParameters(depth=HELD), shape=shape)
        wiring.connect(m, fetch.fetched, queue.i)
        fetched = queue.o

        row = Signal(range(p.table_rows + 1))
        rows = Signal.like(row)
        reported = Signal()  # the report is known; it waits for AC
        m.d.comb += [
            rows.eq((sequence.n + (p.d - 1)) >> p.element_bits),
            stores.row_number.eq(row),
            words.payload.address.eq(p.regions["g"].address_of(current.head, row)),
            words.payload.write.eq(1),
            words.payload.data.eq(stores.row),
            sequence.release.eq(scored.ready),
            stores.release.eq(scored.ready),
        ]
        # Behind heads that have left their stores, nothing but this is under way.
        m.d.comb += sequence.settled.eq(~reported & ~self.report.valid)
        with m.FSM():
            with m.State("IDLE"):
                # A head whose scores are there begins when AC is free. MD and the fetch of caches
                # are, as AC has had all they had of the head before.
                m.d.sync += row.eq(0)
                with m.If(scored.valid & ac.command.ready):
                    m.d.comb += begins.eq(1)
                    m.next = "ATTEND"
            with m.State("ATTEND"):
                # When MD is finished, all words of G have their final values.
                with m.If(md.idle):
                    m.next = "READ_G"
            with m.State("READ_G"):
                # Read a row of G from the store, write it to memory in the next cycle.
                with m.If(row != rows):
                    m.d.comb += stores.read.eq(1)
                    m.next = "WRITE_G"
                with m.Elif(~reported & ~self.report.valid):
                    # The store is free for another head.
                    m.d.comb += [scored.ready.eq(1), fetched.ready.eq(1)]
                    m.d.sync += reported.eq(1)
                    self._report(m, sequence, current.scores, fetched.payload, md)
                    m.next = "IDLE"
            with m.State("WRITE_G"):
                # The store's row is there; the port may give way to other writes.
                m.d.comb += words.valid.eq(1)
                with m.If(words.ready):
                    m.d.sync += row.eq(row + 1)
                    m.next = "READ_G"
        with m.If(self.report.ready):
            m.d.sync += self.report.valid.eq(0)
        with m.If(reported & ac.settled):
            m.d.sync += [self.report.valid.eq(1), reported.eq(0)]
        # A command is refused only while no head is in the tile, and no report waits.
        with m.If(sequence.error):
            report = self.report.payload
            m.d.sync += [self.report.valid.eq(1), Value.cast(report).eq(0), report.error.eq(1)]

    def _report(self, m: Module, sequence, scores, fetched, md: Md) -> None:
        report = self.report.payload
        caches = Mux(sequence.restart, 0, self.parameters.cache_rows)
        m.d.sync += [
            report.n.eq(sequence.n),
            report.error.eq(0),
            report.centres.eq(scores.centres),
            report.large.eq(scores.large),
            report.rows.eq(scores.rows + caches + fetched.rows),
            report.hits.eq(fetched.hits),
            *(
                getattr(report, name).eq(getattr(md.totals, name))
                for name in ("active", "fresh", "updated", "above")
            ),
        ]

    def _connect_linear(self, m: Module, sequence, linear: Linear, vpus) -> None:
        """The VPUs of all modules, while no head is in them; then the queries are its vectors."""
        for port, vpu in zip(linear.vpu, vpus, strict=True):
            wiring.connect(m, port, vpu)
        wiring.connect(m, linear.y, wiring.flipped(self.y))
        wiring.connect(m, sequence.linear, linear.command)
        m.d.comb += [
            sequence.multiplying.eq(linear.active),
            linear.q.payload.eq(self.q.payload),
            linear.q.valid.eq(self.q.valid & linear.active),
        ]
        with m.If(linear.active):
            m.d.comb += self.q.ready.eq(linear.q.ready)

    def _output(self, m: Module, sequence: CommandSequence, ac: Ac) -> None:
        p = self.parameters
        number = Signal(range(max(2, p.heads)))
        o, out = ac.o, self.o
        last = Signal()
        m.d.comb += [
            last.eq(number == sequence.heads - 1),
            out.valid.eq(o.valid),
            o.ready.eq(out.ready),
            out.payload.o.eq(o.payload.o),
            out.payload.invalid.eq(o.payload.invalid),
            out.payload.last.eq(last),
        ]
        with m.If(out.valid & out.ready):
            m.d.sync += number.eq(Mux(last, 0, number + 1))


def _connect_prefetch(m: Module, sequence, prefetch: Prefetch, fetch: ActiveFetch) -> None:
    """Rows loaded ahead: heads of a prefetch command, and lookups of the next command's heads."""
    wiring.connect(m, sequence.prefetch, prefetch.command)
    m.d.comb += [
        sequence.prefetching.eq(prefetch.busy),
        prefetch.empty.eq(sequence.empty),
        prefetch.lookup.eq(fetch.lookup),
        prefetch.head.eq(fetch.lookup_head),
        prefetch.position.eq(fetch.lookup_position),
        prefetch.taken.eq(fetch.copies),
        fetch.known.eq(prefetch.known),
        fetch.hit.eq(prefetch.hit),
        fetch.hit_k.eq(prefetch.k),
        fetch.hit_v.eq(prefetch.v),
    ]


def _head_layout(p: LadTileParameters) -> data.StructLayout:
    """A head in the pipeline: its number, its query, and what EAS found."""
    return data.StructLayout(
        {
            "head": p.head_index,
            "q": p.row_layout,
            "scores": identified_layout(p),
        }
    )
