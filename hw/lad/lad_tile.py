"""A tile: attention of a token's heads that reads few of their keys and values (LAD, IV)."""

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.component import Component
from hw.lad.ac import Ac
from hw.lad.active_fetch import ActiveFetch
from hw.lad.apid import Apid
from hw.lad.eas import Eas, identified_layout
from hw.lad.head_store import HeadStore
from hw.lad.linear import Linear
from hw.lad.md import Md
from hw.lad.prefetch import Prefetch
from hw.lad.tile_parameters import PIECES, VPUS, LadTileParameters
from hw.stream.arbiter import Arbiter, ArbiterParameters

__all__ = ["LadTile", "LadTileParameters"]

HELD = 2
"""Heads in the pipeline: one whose scores are computed, one whose output is."""


class LadTile(Component):
    """o_h = softmax(q_h K) V, piecewise linear, from caches of all positions but the active ones.

    ::

        job, kv, q ─→ Eas ─→ scores, G ─→ Apid ─→ ActiveFetch ─→ Md ─→ Ac ─→ o
                       ↑↓       ↑            ↓        ↑↓          ↓     ↓↑
                     memory     └── counters ┘      memory     G, counters, caches ─→ memory

    A job is one token of a sequence: its number of positions, the new one included; for each kv
    head its rows of K and V; for each query head its row q, times 1 / sqrt d. The heads run one
    after another through six stages: EAS reads G and keys and estimates all scores; APID finds the
    active positions, whose scores have left their mode's interval; their rows and the caches are
    fetched; MD computes their exact scores and changes modes; AC computes the output and updates
    the caches. The scores of one head are computed while the output of the head before it is.

    With `prefetch`, a job may also load rows of positions that were active in the last step, of
    which the next job's heads make use (:class:`Prefetch`). With `weights`, a job may be a linear
    layer of up to six vectors, on the VPUs of all stages (:class:`Linear`): its ``q`` are the
    pieces of the vectors, and its only output is ``y``.

    ``clear`` begins a sequence. Modes, counters and caches stay in the memory, whose map is
    :attr:`LadTileParameters.regions`. A job waits until all of the last one's writes have been
    accepted.

    Errors: `n` of 0 counts as 1, `n` above `positions` as `positions`, its heads ``invalid``; so
    are all heads before the first `clear` after a reset. `heads` or `group` of 0 or out of range
    count as 1, and `heads` too if that takes more than `kv_heads`. An infinite or NaN score of an
    active position, a denominator that is not a number above 0 and an infinite or NaN output make a
    head ``invalid``; no term with a NaN enters the caches.

    Cycles: see docs/lad.md.

    Handshake: ``request`` is a register. A response that was not requested is an error of the
    memory.

    Members
    -------
    job : :py:`In(stream.Signature(parameters.job_layout))`
    kv : :py:`In(stream.Signature(parameters.row))`
        K, then V, of each kv head.
    q : :py:`In(stream.Signature(parameters.row))`
        One for each head.
    request : :py:`Out(stream.Signature(parameters.request_layout))`
    response : :py:`In(stream.Signature(parameters.response_layout))`
        In any order.
    o : :py:`Out(stream.Signature(parameters.output_layout))`
        One for each head, in order.
    report : :py:`Out(stream.Signature(parameters.report_layout))`
        One for each head, in order, when its caches are written.
    y : :py:`Out(stream.Signature(parameters.y_layout))`
        Only with `weights`: one for each row of a linear layer.

    Examples
    --------
    >>> from hw.lad.lad_tile import LadTileParameters
    >>> parameters = LadTileParameters(d=128, positions=4096)
    >>> parameters.cache_rows, parameters.regions["g"].rows, parameters.counter_words
    (263, 32, 16)
    """

    summary = "A token's attention from caches of positions whose scores stay in one interval"
    source = "LAD, section IV and Fig. 4 to 6"

    def __init__(self, parameters: LadTileParameters):
        self._parameters = p = parameters
        ports = {
            "job": In(stream.Signature(p.job_layout)),
            "kv": In(stream.Signature(p.row)),
            "q": In(stream.Signature(p.row)),
            "request": Out(stream.Signature(p.request_layout)),
            "response": In(stream.Signature(p.response_layout)),
            "o": Out(stream.Signature(p.output_layout)),
            "report": Out(stream.Signature(p.report_layout)),
        }
        if p.weights:
            ports["y"] = Out(stream.Signature(p.y_layout))
        super().__init__(ports)

    @property
    def parameters(self) -> LadTileParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        m.submodules.eas = self._eas = Eas(p)
        m.submodules.apid = self._apid = Apid(p.apid)
        m.submodules.active_fetch = self._fetch = ActiveFetch(p)
        m.submodules.md = self._md = Md(p)
        m.submodules.ac = self._ac = Ac(p)
        self._stores = [HeadStore(p) for _ in range(HELD)]
        for number, store in enumerate(self._stores):
            m.submodules[f"store_{number}"] = store
        job = Signal(p.job_layout, reset_less=True)
        invalid = Signal()  # all heads of the job
        # What is known of a head from stage to stage, by the number of its store.
        heads = [Signal(_held_layout(p), name=f"held_{n}") for n in range(HELD)]
        used = Signal(HELD)  # stores
        identified = Signal(HELD)  # stores whose scores are there
        release = Signal(HELD)
        g_request = Signal(p.request_layout)
        g_valid, g_ready = Signal(), Signal()

        attending = self._attend(
            m, job, invalid, heads, identified, release, g_request, g_valid, g_ready
        )
        self._sequence(m, job, invalid, heads, used, identified, release, attending)
        self._identify(m, heads)
        readers = [self._eas, self._fetch]
        if p.prefetch:
            readers.append(self._connect_prefetch(m, job))
        if p.weights:
            readers.append(self._connect_linear(m, job))
        self._connect_memory(m, readers, g_request, g_valid, g_ready)
        self._output(m, job)
        return m

    def _sequence(self, m, job, invalid, heads, used, identified, release, attending) -> None:
        """A job: its heads to EAS, each with a store of its own."""
        p, eas = self._parameters, self._eas
        offered = self.job.payload
        begun = Signal()  # a sequence, since reset
        head = Signal(range(p.heads + 1))
        kv_head = Signal(p.kv_head_index)
        place = Signal(range(p.heads + 1))  # among the heads of the kv head
        number = Signal(range(HELD))  # of the store
        scoring = Signal()  # a head is in EAS
        covered = Signal(range(2 * p.heads + 1))
        kv_heads = Signal(range(p.kv_heads + 1))
        command = eas.command
        # Of prefetch jobs.
        self._empties, self._prefetches = Signal(name="empties"), Signal(name="prefetches")
        self._prefetch_ready, self._prefetch_busy = Signal(), Signal(name="prefetch_busy")
        next_head = Signal()
        self._multiplies, self._linear_active = Signal(name="multiplies"), Signal()
        m.d.comb += [
            eas.q.valid.eq(self.q.valid),
            eas.q.payload.eq(self.q.payload),
            self.q.ready.eq(eas.q.ready),
        ]
        wiring.connect(m, wiring.flipped(self.kv), eas.kv)
        m.d.comb += [
            command.payload.head.eq(head),
            command.payload.kv_head.eq(kv_head),
            command.payload.n.eq(job.n),
            command.payload.first.eq(place == 0),
            eas.identified.ready.eq(scoring),
        ]
        m.d.sync += used.eq(used & ~release)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.job.ready.eq(1)
                m.d.sync += [x.eq(0) for x in (head, kv_head, place, covered, kv_heads)]
                with m.If(self.job.valid):
                    n = offered.n
                    too_long = n > p.positions
                    bad_heads = (offered.heads == 0) | (offered.heads > p.heads)
                    bad_group = (offered.group == 0) | (offered.group > p.heads)
                    m.d.sync += [
                        job.n.eq(Mux((n == 0) | offered.clear, 1, Mux(too_long, p.positions, n))),
                        job.heads.eq(Mux(bad_heads, 1, offered.heads)),
                        job.group.eq(Mux(bad_group, 1, offered.group)),
                        job.clear.eq(offered.clear),
                        begun.eq(begun | offered.clear),
                        invalid.eq(~(begun | offered.clear) | (too_long & ~offered.clear)),
                    ]
                    if p.prefetch:
                        # Rows are kept for one step of the same sequence.
                        m.d.sync += job.prefetch.eq(offered.prefetch)
                        is_prefetch = offered.prefetch != 0
                        m.d.comb += self._empties.eq(is_prefetch | offered.clear)
                        with m.If(is_prefetch):
                            m.d.sync += [begun.eq(begun), job.n.eq(Mux(too_long, p.positions, n))]
                    m.next = "COUNT"
                    if p.weights:
                        pieces, rows = offered.pieces, offered.rows
                        m.d.sync += [
                            job.pieces.eq(Mux(pieces > PIECES, PIECES, pieces)),
                            job.row.eq(offered.row),
                            job.rows.eq(Mux(rows == 0, 1, rows)),
                        ]
                        with m.If(offered.pieces != 0):
                            m.d.sync += begun.eq(begun)
                            m.next = "LINEAR"
            with m.State("COUNT"):
                # heads / group, rounded up, must not exceed kv_heads.
                with m.If(covered >= job.heads):
                    m.next = "HEAD"
                    if p.prefetch:
                        with m.If(job.prefetch != 0):
                            m.next = "PREFETCH"
                with m.Elif(kv_heads == p.kv_heads):
                    m.d.sync += [job.heads.eq(1), covered.eq(1)]
                with m.Else():
                    m.d.sync += [covered.eq(covered + job.group), kv_heads.eq(kv_heads + 1)]
            with m.State("HEAD"):
                with m.If(head == job.heads):
                    m.next = "FINISH"
                with m.Elif(~Array(used)[number]):
                    m.d.comb += command.valid.eq(1)
                    with m.If(command.ready):
                        m.d.sync += [used.bit_select(number, 1).eq(1), scoring.eq(1)]
                        for n, held in enumerate(heads):
                            with m.If(number == n):
                                m.d.sync += [
                                    held.head.eq(head),
                                    held.kv_head.eq(kv_head),
                                    held.q.eq(self.q.payload),
                                ]
                        m.next = "SCORES"
            with m.State("SCORES"):
                with m.If(eas.identified.valid):
                    m.d.comb += next_head.eq(1)
                    m.d.sync += [
                        scoring.eq(0),
                        number.eq(number + 1),
                        identified.bit_select(number, 1).eq(1),
                    ]
                    for n, held in enumerate(heads):
                        with m.If(number == n):
                            m.d.sync += held.scores.eq(eas.identified.payload)
                    m.next = "HEAD"
            with m.State("FINISH"):
                with m.If((used == 0) & ~attending & self._ac.idle & self._md.idle):
                    m.d.comb += self._empties.eq(1)
                    m.next = "IDLE"
            if p.prefetch:
                with m.State("PREFETCH"):
                    with m.If(head != job.heads):
                        m.d.comb += [
                            self._prefetches.eq(1),
                            next_head.eq(self._prefetch_ready),
                        ]
                    with m.Elif(~self._prefetch_busy):
                        m.next = "IDLE"
            if p.weights:
                with m.State("LINEAR"):
                    m.d.comb += self._multiplies.eq(1)
                    m.next = "PRODUCTS"
                with m.State("PRODUCTS"):
                    with m.If(~self._linear_active):
                        m.next = "IDLE"
        with m.If(next_head):
            m.d.sync += [head.eq(head + 1), place.eq(place + 1)]
            with m.If(place + 1 == job.group):
                m.d.sync += [place.eq(0), kv_head.eq(kv_head + 1)]
        for n, store in enumerate(self._stores):
            m.d.comb += [
                store.words_valid.eq(eas.words_valid & (number == n)),
                store.words_row.eq(eas.words_row),
                store.words.eq(eas.words),
                store.score_valid.eq(eas.score_valid & (number == n)),
                store.score_index.eq(eas.score_index),
                store.scores.eq(eas.scores),
                store.score_keep.eq(eas.score_keep),
            ]
        self._job_n, self._identified = job.n, identified

    def _identify(self, m: Module, heads) -> None:
        """APID: beats of a store's scores and words, as soon as EAS has finished them."""
        p, apid = self._parameters, self._apid
        number = Signal(range(HELD), name="apid_store")
        beat = Signal(range(-(-p.positions // p.lanes) + 1), name="apid_beat")
        beats = Signal.like(beat, name="apid_beats")
        left = Signal(range(HELD + 1), name="identified_heads")  # that wait for APID
        running, valid, fetch = Signal(), Signal(), Signal()
        reads = [Signal(name=f"read_beat_{n}") for n in range(HELD)]
        arrives = self._eas.identified.valid & self._eas.identified.ready
        starts = Signal(name="apid_starts")
        m.d.sync += left.eq(left + arrives - starts)
        command = apid.command
        m.d.comb += [
            command.valid.eq(~running & (left != 0)),
            starts.eq(command.valid & command.ready),
            command.payload.n.eq(self._job_n),
            beats.eq((self._job_n + (p.lanes - 1)) >> (p.lanes - 1).bit_length()),
            fetch.eq(running & (beat != beats) & (~valid | apid.i.ready)),
            apid.i.valid.eq(valid),
        ]
        with m.If(starts):
            m.d.sync += [running.eq(1), beat.eq(0)]
        with m.If(~valid | apid.i.ready):
            m.d.sync += valid.eq(fetch)
        with m.If(fetch):
            m.d.sync += beat.eq(beat + 1)
        # The counters of the last beat end a head; only then may the store change.
        done = apid.counters.valid & apid.counters.ready & apid.counters.payload.last
        with m.If(done):
            m.d.sync += [running.eq(0), number.eq(number + 1)]
        with m.Switch(number):
            for n, (held, store) in enumerate(zip(heads, self._stores, strict=True)):
                with m.Case(n) if n < HELD - 1 else m.Default():
                    m.d.comb += [
                        command.payload.m.eq(held.scores.m),
                        reads[n].eq(fetch),
                        apid.counters.ready.eq(~store.md_valid),
                        store.beat_valid.eq(apid.counters.valid),
                    ]
                    for lane in range(p.lanes):
                        word, into = store.g[lane], apid.i.payload.g[lane]
                        m.d.comb += [
                            apid.i.payload.s[lane].eq(store.s[lane]),
                            into.count.eq(word.count),
                            into.mode.eq(word.mode),
                            into.active.eq(word.active),
                        ]
        for store, read, read_row in zip(self._stores, reads, self._read_rows, strict=True):
            m.d.comb += [
                store.read.eq(read | read_row),
                store.read_row.eq(read_row),
                store.number.eq(Mux(read_row, self._g_row, beat)),
                store.beat_number.eq(apid.counters.payload.beat),
                store.beat_keep.eq(apid.counters.payload.write),
            ]
            for lane in range(p.lanes):
                word, into = apid.counters.payload.g[lane], store.beat_words[lane]
                m.d.comb += [
                    into.count.eq(word.count),
                    into.mode.eq(word.mode),
                    into.active.eq(word.active),
                ]
        entry = self._fetch.entry
        position = apid.o.payload.positions[0]
        m.d.comb += [
            entry.valid.eq(apid.o.valid),
            apid.o.ready.eq(entry.ready),
            entry.payload.last.eq(apid.o.payload.last),
            *(
                getattr(entry.payload, name).eq(getattr(position, name))
                for name in ("index", "mode", "count", "fresh", "halve")
            ),
        ]

    def _attend(self, m, job, invalid, heads, identified, release, g_request, g_valid, g_ready):
        """Fetch, MD and AC of a head, then its words of G back to memory, and its report.

        Returns whether a head is in these stages.
        """
        p = self._parameters
        fetch, md, ac = self._fetch, self._md, self._ac
        number = Signal(range(HELD), name="attended_store")
        row = Signal(range(p.table_rows + 1), name="g_row")
        rows = Signal.like(row, name="g_rows")
        current: Any = Signal(_held_layout(p), name="attended")
        begins, attending = Signal(), Signal()
        # AC may still write the caches of the head before.
        self._attended_head = Signal(p.head_index, name="attended_head", reset_less=True)
        ready = Signal()
        read_rows = [Signal(name=f"read_row_{n}") for n in range(HELD)]
        g_row_data = Signal(p.row)
        with m.Switch(number):
            for n, held in enumerate(heads):
                with m.Case(n) if n < HELD - 1 else m.Default():
                    m.d.comb += [
                        current.eq(held),
                        g_row_data.eq(self._stores[n].row),
                        self._stores[n].md_valid.eq(md.g_valid),
                    ]
        for store in self._stores:
            m.d.comb += [store.md_index.eq(md.g_index), store.md_word.eq(md.g_word)]
        wiring.connect(m, fetch.key, md.key)
        wiring.connect(m, fetch.counters, md.counters)
        wiring.connect(m, fetch.cache, ac.cache)
        wiring.connect(m, fetch.rows, ac.rows)
        wiring.connect(m, md.correction, ac.correction)
        m.d.comb += [
            ready.eq(fetch.command.ready & md.command.ready & ac.command.ready),
            *(block.command.valid.eq(begins) for block in (fetch, md, ac)),
            fetch.command.payload.head.eq(current.head),
            fetch.command.payload.kv_head.eq(current.kv_head),
            fetch.command.payload.clear.eq(job.clear),
            md.command.payload.q.eq(current.q),
            md.command.payload.m.eq(current.scores.m),
            md.command.payload.n.eq(job.n),
            ac.command.payload.q.eq(current.q),
            ac.command.payload.m.eq(current.scores.m),
            ac.command.payload.clear.eq(job.clear),
            ac.command.payload.invalid.eq(invalid),
            rows.eq((job.n + (p.d - 1)) >> p.element_bits),
        ]
        report = self.report.payload
        with m.FSM(name="attend") as fsm:
            m.d.comb += attending.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.sync += row.eq(0)
                with m.If(Array(identified)[number] & ready):
                    m.d.comb += begins.eq(1)
                    m.d.sync += self._attended_head.eq(current.head)
                    m.d.sync += identified.bit_select(number, 1).eq(0)
                    m.next = "ATTEND"
            with m.State("ATTEND"):
                with m.If(md.idle):
                    m.next = "READ_G"
            with m.State("READ_G"):
                with m.If(row == rows):
                    # The store is free for another head, while AC still updates the caches.
                    m.d.comb += release.bit_select(number, 1).eq(1)
                    m.d.sync += [
                        number.eq(number + 1),
                        report.n.eq(job.n),
                        report.centres.eq(current.scores.centres),
                        report.large.eq(current.scores.large),
                        report.rows.eq(current.scores.rows + fetch.rows_read),
                        report.hits.eq(fetch.hits),
                        *(
                            getattr(report, name).eq(getattr(md.totals, name))
                            for name in ("active", "fresh", "updated", "above")
                        ),
                    ]
                    m.next = "REPORT"
                with m.Else():
                    for n in range(HELD):
                        m.d.comb += read_rows[n].eq(number == n)
                    m.next = "WRITE_G"
            with m.State("WRITE_G"):
                m.d.comb += g_valid.eq(1)
                with m.If(g_ready):
                    m.d.sync += row.eq(row + 1)
                    m.next = "READ_G"
            with m.State("REPORT"):
                m.d.comb += self.report.valid.eq(ac.idle)
                with m.If(self.report.valid & self.report.ready):
                    m.next = "IDLE"
        m.d.comb += [
            g_request.address.eq(p.regions["g"].address_of(current.head, row)),
            g_request.write.eq(1),
            g_request.data.eq(g_row_data),
        ]
        self._read_rows, self._g_row = read_rows, row
        return attending

    def _connect_prefetch(self, m: Module, job) -> Prefetch:
        """Rows loaded ahead: a command for each head of a prefetch job; lookups of the next one."""
        m.submodules.prefetch = prefetch = Prefetch(self._parameters)
        fetch = self._fetch
        command = prefetch.command
        m.d.comb += [
            prefetch.empty.eq(self._empties),
            command.valid.eq(self._prefetches),
            command.payload.head.eq(self._eas.command.payload.head),
            command.payload.kv_head.eq(self._eas.command.payload.kv_head),
            command.payload.n.eq(job.n),
            command.payload.most.eq(job.prefetch),
            self._prefetch_ready.eq(command.ready),
            prefetch.lookup.eq(fetch.lookup),
            prefetch.head.eq(fetch.lookup_head),
            prefetch.position.eq(fetch.lookup_position),
            fetch.known.eq(prefetch.known),
            fetch.hit.eq(prefetch.hit),
            fetch.hit_k.eq(prefetch.k),
            fetch.hit_v.eq(prefetch.v),
            self._prefetch_busy.eq(prefetch.busy),
        ]
        return prefetch

    def _connect_linear(self, m: Module, job) -> Linear:
        """The VPUs of all modules, while no head is in them."""
        m.submodules.linear = linear = Linear(self._parameters)
        ports = [*self._eas.linear, self._md.linear, *self._ac.linear]
        for port, vpu in zip(linear.vpu, ports, strict=True):
            wiring.connect(m, port, vpu)
        wiring.connect(m, linear.y, wiring.flipped(self.y))
        command = linear.command
        m.d.comb += [
            command.valid.eq(self._multiplies),
            command.payload.vectors.eq(Mux(job.heads > VPUS, VPUS, job.heads)),
            command.payload.pieces.eq(job.pieces),
            command.payload.row.eq(job.row),
            command.payload.rows.eq(job.rows),
            self._linear_active.eq(linear.active),
            linear.q.payload.eq(self.q.payload),
            linear.q.valid.eq(self.q.valid & linear.active),
        ]
        with m.If(linear.active):
            m.d.comb += [self.q.ready.eq(linear.q.ready), self._eas.q.valid.eq(0)]
        return linear

    def _connect_memory(self, m: Module, readers: list[Any], g_request, g_valid, g_ready) -> None:
        """The port: requests of all blocks, responses to those that read."""
        p = self._parameters
        m.submodules.arbiter = arbiter = Arbiter(
            ArbiterParameters(inputs=len(readers) + 3), shape=p.request_layout
        )
        ac, md, g = list(arbiter.i)[len(readers) :]
        for source, (port, block) in enumerate(zip(arbiter.i, readers, strict=False)):
            read = block.request
            m.d.comb += [
                port.valid.eq(read.valid),
                read.ready.eq(port.ready),
                port.payload.tag.source.eq(source),
                port.payload.tag.label.eq(read.payload.label),
                *(
                    Value.cast(getattr(port.payload, name)).eq(
                        Value.cast(getattr(read.payload, name))
                    )
                    for name, _ in read.payload.shape()
                    if name != "label"
                ),
            ]
        regions = p.regions
        head = self._attended_head
        for port, written, region in (
            (ac, self._ac.written, "cache"),
            (md, self._md.written, "counter"),
        ):
            m.d.comb += [
                port.valid.eq(written.valid),
                written.ready.eq(port.ready),
                port.payload.address.eq(regions[region].address_of(head, written.payload.row)),
                port.payload.write.eq(1),
                port.payload.data.eq(written.payload.data),
            ]
        m.d.comb += [g.valid.eq(g_valid), g_ready.eq(g.ready), g.payload.eq(g_request)]
        o = arbiter.o
        m.d.comb += [
            self.request.valid.eq(o.valid),
            self.request.payload.eq(o.payload.data),
            o.ready.eq(self.request.ready),
        ]
        response = self.response
        tag = response.payload.tag
        for source, block in enumerate(readers):
            m.d.comb += [
                block.response.valid.eq(response.valid & (tag.source == source)),
                block.response.payload.label.eq(tag.label),
                block.response.payload.data.eq(response.payload.data),
            ]
            with m.If(tag.source == source):
                m.d.comb += response.ready.eq(block.response.ready)

    def _output(self, m: Module, job) -> None:
        p = self._parameters
        number = Signal(range(p.heads + 1), name="output_head")
        o, out = self._ac.o, self.o
        last = Signal()
        m.d.comb += [
            last.eq(number == job.heads - 1),
            out.valid.eq(o.valid),
            o.ready.eq(out.ready),
            out.payload.o.eq(o.payload.o),
            out.payload.invalid.eq(o.payload.invalid),
            out.payload.last.eq(last),
        ]
        with m.If(out.valid & out.ready):
            m.d.sync += number.eq(Mux(last, 0, number + 1))


def _held_layout(p: LadTileParameters) -> data.StructLayout:
    """A head in the pipeline: its numbers, its query, and what EAS found."""
    return data.StructLayout(
        {
            "head": p.head_index,
            "kv_head": p.kv_head_index,
            "q": p.row,
            "scores": identified_layout(p),
        }
    )
