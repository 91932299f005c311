"""Rows of active positions from memory, in order (LAD, section IV-C, stage 4)."""

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, memory

from hw.component import Component
from hw.lad.caches.row_memory import row_memory
from hw.lad.md import key_layout
from hw.lad.tile_parameters import LadTileParameters, StageParameters
from hw.layout import index
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


class Kind(enum.IntEnum, shape=2):
    """What a row is: of K, of V, of the counters."""

    KEY = 0
    VALUE = 1
    COUNTERS = 2


class ActiveFetchParameters(StageParameters):
    __doc__ = LadTileParameters.__doc__

    @property
    def latency(self) -> int:
        """Cycles from a head's last entry to its rows: its requests, and an answer each."""
        return 7


class ActiveFetch(Component[LadTileParameters]):
    """Requests what MD and AC need of a head's active positions, and outputs it in order.

    ::

        entry ─→ slot: counters, K[j], V[j] ─→ request ┄┄ memory ┄┄→ response
                                                                        ↓
                         key, counters (MD), then rows (AC) ←── slots ←─┘

    A command is a head, whose entries follow. Each entry is given a slot of K, of V and of the
    counters, in which its rows wait, because rows of earlier entries may come later. The counters
    of several positions share a row; it is requested for the first of consecutive entries in it. An
    entry of an inactive position (``halve``) requests its counters only. Entries of the next head
    may be requested while rows of this one are still to come.

    Every slot is read three times, each time in order: by ``key``, with the entry; by ``counters``,
    if it has a row of them; by ``rows``, if it is active, which frees it.

    With `prefetch` each active position is looked up first. The rows of a hit go to its slot in a
    cycle, and it requests its counters at most.

    Latency: 1 cycle from an entry to its first request, 2 from the last response that it needs to
    its key or its rows. Throughput: a request per cycle, so an active position takes 2 cycles, 3
    with counters; :func:`golden.lad.cycles.fetch_cycles` has all cycles.

    Handshake: ``response.ready`` is high. A slot is freed when its rows are output, so a consumer
    of ``key`` must not wait for ``rows`` of a later entry than `depth` - 1 further. Overflow: none.

    Examples
    --------
    >>> from hw.lad.active_fetch import ActiveFetchParameters
    >>> parameters = ActiveFetchParameters(d=128, positions=4096, heads=32, kv_heads=32)
    >>> [name for name in parameters.regions], parameters.address_width
    (['k', 'v', 'code', 'unit', 'g', 'counter', 'cache'], 19)
    """

    summary = "Rows of active positions, counters and caches from memory, in order"
    source = "LAD, section IV-C, stage 4"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(fetch_layout(p), "Heads to fetch for."),
            "entry": stream_in(p.entry_layout, "Active positions, in order."),
            "request": stream_out(p.block_memory.request_layout, "Rows to read."),
            "response": stream_in(p.block_memory.response_layout, "These rows, in any order."),
            "key": stream_out(key_layout(p), "Rows of K with their entries."),
            "counters": stream_out(p.row_layout, "Rows of mode counters."),
            "rows": stream_out(position_rows_layout(p), "Rows of K and V for the corrections."),
            "fetched": stream_out(
                fetched_layout(p),
                "A head's last row is requested: how many were; positions whose rows had been "
                "prefetched.",
            ),
            **_prefetch_ports(p),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        # Slots are allocated at `tail` and read in order by three readers.
        pointer = range(2 * p.depth)  # with a wrap bit
        tail, key, counted, value = (
            Signal(pointer, name=name)
            for name in ("tail", "key_slot", "counted_slot", "value_slot")
        )
        allocate = Signal()
        full = Signal()
        # The value's reader is the last of the three, so its pointer alone decides whether a slot
        # is free.
        m.d.comb += full.eq(tail == value ^ p.depth)
        self._request(m, allocate, full, tail)
        self._answered = data.View(_label_layout(p), self.response.payload.tag)
        self._slot = self._answered.number[: (p.depth - 1).bit_length()]
        # Always ready: a request is made only for a slot that is allocated, so every answer has its
        # place, and this reader can never block the tile's shared port.
        m.d.comb += self.response.ready.eq(1)
        flags = self._flags(m, allocate, tail[:-1])
        with m.If(allocate):
            m.d.sync += tail.eq(tail + 1)
        reads = self._readers(m, flags, tail, key, counted, value)
        self._entries(m, allocate, tail[:-1], reads[0], key)
        self._rows(m, reads, key, counted, value)
        return m

    def _flags(self, m: Module, allocate, index) -> tuple[dict[Kind, Signal], Signal, Signal]:
        """Flags of each slot: its rows are there, or no key needed; it is active; it has counters.

        index
            The slot that is allocated.
        """
        p = self.parameters
        arrived = {kind: Signal(p.depth, name=f"{kind.name.lower()}_arrived") for kind in Kind}
        active = Signal(p.depth, reset_less=True)
        counts = Signal(p.depth, reset_less=True)
        wants_rows = ~self.entry.payload.halve
        for kind, bits in arrived.items():
            with m.If(self.response.valid & (self._answered.kind == kind)):
                m.d.sync += bits.bit_select(self._slot, 1).eq(1)
            if p.prefetch and kind != Kind.COUNTERS:
                with m.If(self._copies):
                    m.d.sync += bits.bit_select(self._current_slot, 1).eq(1)
            with m.If(allocate):
                # Keys are read of all entries; other rows that are not needed are skipped.
                m.d.sync += bits.bit_select(index, 1).eq(~wants_rows if kind == Kind.KEY else 0)
        with m.If(allocate):
            m.d.sync += [
                active.bit_select(index, 1).eq(wants_rows),
                counts.bit_select(index, 1).eq(self._changes_row),
            ]
        return arrived, active, counts

    def _readers(self, m: Module, flags, tail, key, counted, value) -> tuple[Signal, ...]:
        """Readers of keys, counters, and rows; returns: each one reads its slot in this cycle."""
        arrived, active, counts = flags
        read_key, read_counters, read_rows = (
            Signal(name=name) for name in ("read_key", "read_counters", "read_rows")
        )
        skip_counters = Signal()
        skip_rows = Signal()
        # The last reader frees a slot, so it waits until the others have passed it.
        passed = (value != key) & (value != counted)
        m.d.comb += [
            read_key.eq((key != tail) & _at(arrived[Kind.KEY], key) & _free(self.key)),
            skip_counters.eq((counted != tail) & ~_at(counts, counted)),
            read_counters.eq(
                (counted != tail)
                & _at(counts, counted)
                & _at(arrived[Kind.COUNTERS], counted)
                & _free(self.counters)
            ),
            skip_rows.eq(passed & ~_at(active, value)),
            read_rows.eq(
                passed & _at(active, value) & _at(arrived[Kind.VALUE], value) & _free(self.rows)
            ),
        ]
        for pointer, moves in (
            (key, read_key),
            (counted, read_counters | skip_counters),
            (value, read_rows | skip_rows),
        ):
            with m.If(moves):
                m.d.sync += pointer.eq(pointer + 1)
        # An output's payload is the memory's register, valid in the cycle after a read.
        reads = read_key, read_counters, read_rows
        for port, read in zip((self.key, self.counters, self.rows), reads, strict=True):
            with m.If(_free(port)):
                m.d.sync += port.valid.eq(read)
        return reads

    def _entries(self, m: Module, allocate, index, read_key, key) -> None:
        """Memory of the slots' entries, which leave with their keys."""
        p = self.parameters
        entries = memory.Memory(shape=p.entry_layout.size, depth=p.depth, init=[])
        m.submodules.entries = entries
        write, read = entries.write_port(), entries.read_port()
        m.d.comb += [
            write.addr.eq(index),
            write.data.eq(self.entry.payload),
            write.en.eq(allocate),
            read.addr.eq(key[:-1]),
            read.en.eq(read_key),
            self.key.payload.entry.eq(read.data),
        ]

    def _rows(self, m: Module, reads, key, counted, value) -> None:
        """Memories of the slots' rows, written by responses."""
        read_key, read_counters, read_rows = reads
        key_data, key_again = self._memory(m, "keys", Kind.KEY, (read_key, key), (read_rows, value))
        (value_data,) = self._memory(m, "values", Kind.VALUE, (read_rows, value))
        (count_data,) = self._memory(m, "counters", Kind.COUNTERS, (read_counters, counted))
        m.d.comb += [
            self.key.payload.data.eq(key_data),
            self.rows.payload.k.eq(key_again),
            self.rows.payload.v.eq(value_data),
            self.counters.payload.eq(count_data),
        ]

    def _memory(self, m: Module, name: str, kind: Kind, *reads) -> list[Value]:
        """One kind's memory; returns the words that `reads`, pairs (enable, slot), have read."""
        p = self.parameters
        rows: Any
        if kind == Kind.COUNTERS:  # MD needs them at once
            rows = memory.Memory(shape=p.row_bits, depth=p.depth, init=[])
        else:
            rows = row_memory(p.row_bits, p.depth)
        m.submodules[name] = rows
        write = rows.write_port()
        m.d.comb += [
            write.addr.eq(self._slot),
            write.data.eq(self.response.payload.data),
            write.en.eq(self.response.valid & (self._answered.kind == kind)),
        ]
        if p.prefetch and kind in (Kind.KEY, Kind.VALUE):
            with m.If(self._copies):
                m.d.comb += [
                    write.addr.eq(self._current_slot),
                    write.data.eq(self.hit_k if kind == Kind.KEY else self.hit_v),
                    write.en.eq(1),
                ]
        ports = []
        for enable, pointer in reads:
            port = rows.read_port()
            m.d.comb += [port.addr.eq(pointer[:-1]), port.en.eq(enable)]
            ports.append(port.data)
        return ports

    def _request(self, m: Module, allocate, full, tail) -> None:
        """A head's requests: caches, then rows of one entry after the other."""
        p = self.parameters
        command = Signal(fetch_layout(p), reset_less=True)
        position = Signal(p.position, reset_less=True)  # of the current entry
        last = Signal(reset_less=True)
        slot = Signal(range(p.depth), reset_less=True)
        pending = Signal(3)  # requests of the current entry: counters, K, V
        in_row = (p.counter_words - 1).bit_length()
        counted = Signal(max(1, len(position) - in_row))  # the row of counters requested last
        has_counted = Signal()
        request = self.request
        accepted = Signal()
        counts = Signal(fetched_layout(p))
        label = Signal(_label_layout(p))
        address = Signal(p.address_width)
        here = Signal.like(counted)
        self._changes_row = Signal(name="changes_row")
        m.d.comb += [
            accepted.eq(request.valid & request.ready),
            # Only reads: `write` and `data` are 0.
            Value.cast(request.payload).eq(Cat(label, address)),
            here.eq(self.entry.payload.index >> in_row),
            self._changes_row.eq(~has_counted | (here != counted)),
        ]
        with m.If(accepted):
            m.d.sync += counts.rows.eq(counts.rows + 1)
        # A hit's rows are copied unless responses write both memories' slots.
        self._copies, self._current_slot = Signal(name="copies"), slot
        # One request of the current entry at a time: the lowest bit pending.
        rest = Signal(3)
        known = Signal()
        hit = Signal()
        finishes = Signal()
        m.d.comb += rest.eq(Mux(self._copies, 0, pending & (pending - 1)))
        self._look_up(m, command.head, position, pending, (known, hit), counts)
        with m.FSM():
            with m.State("IDLE"):
                # The head's first entry has another row of counters than the last head's.
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [has_counted.eq(0), counts.eq(0)]
                with m.If(self.command.valid):
                    m.d.sync += command.eq(self.command.payload)
                    m.next = "ENTRIES"
            with m.State("ENTRIES"):
                # An entry is accepted with the last request of the one before it, in its head.
                ends = pending.any() & last
                self._target(m, command, position, slot, pending, label, address)
                m.d.comb += [
                    finishes.eq(accepted | self._copies),
                    # K and V of a position are not requested before it is looked up.
                    request.valid.eq(pending.any() & (pending[0] | ~pending[1] | known) & ~hit),
                    self.entry.ready.eq(
                        ~full & ((rest == 0) & (finishes | ~pending.any())) & ~ends
                    ),
                    allocate.eq(self.entry.valid & self.entry.ready),
                ]
                with m.If(finishes):
                    m.d.sync += pending.eq(rest)
                    with m.If((rest == 0) & last):
                        m.next = "FETCHED"
                with m.If(allocate):
                    active = ~self.entry.payload.halve
                    m.d.sync += [
                        position.eq(self.entry.payload.index),
                        last.eq(self.entry.payload.last),
                        slot.eq(tail[:-1]),
                        pending.eq(Cat(self._changes_row, active, active)),
                        counted.eq(here),
                        has_counted.eq(1),
                    ]
            with m.State("FETCHED"):
                # All requests of the head have been accepted.
                m.d.comb += [self.fetched.valid.eq(1), self.fetched.payload.eq(counts)]
                with m.If(self.fetched.ready):
                    m.next = "IDLE"

    def _look_up(self, m: Module, head, position, pending, answer, counts) -> None:
        """Whether the current entry's rows have been loaded ahead; then they are copied.

        They are looked up while the entry's counters are still to be requested.
        """
        known, hit = answer
        if not self.parameters.prefetch:
            m.d.comb += known.eq(1)
            return
        writes = self.response.valid & ~self.response.payload.tag[-1]  # not a row of counters
        m.d.comb += [
            self.lookup.eq(pending[1]),
            self.lookup_head.eq(head),
            self.lookup_position.eq(position),
            known.eq(self.known),
            hit.eq(self.hit & pending[1] & ~pending[0]),
            self._copies.eq(hit & ~writes),
            self.copies.eq(self._copies),
        ]
        with m.If(self._copies):
            m.d.sync += counts.hits.eq(counts.hits + 1)

    def _target(self, m: Module, command, position, slot, pending, label, address) -> None:
        """What is requested: a row of counters, K or V of the current entry."""
        p = self.parameters
        in_row = (p.counter_words - 1).bit_length()
        m.d.comb += label.number.eq(slot)
        with m.If(pending[0]):
            m.d.comb += [
                label.kind.eq(Kind.COUNTERS),
                address.eq(p.regions["counter"].address_of(command.head, position >> in_row)),
            ]
        with m.Elif(pending[1]):
            m.d.comb += [
                label.kind.eq(Kind.KEY),
                address.eq(p.regions["k"].address_of(command.kv_head, position)),
            ]
        with m.Else():
            m.d.comb += [
                label.kind.eq(Kind.VALUE),
                address.eq(p.regions["v"].address_of(command.kv_head, position)),
            ]


def _at(bits: Signal, pointer: Signal) -> Value:
    return Array(bits)[pointer[:-1]]


def _free(port) -> Value:
    return ~port.valid | port.ready


def _prefetch_ports(p: LadTileParameters) -> Ports:
    if not p.prefetch:
        return {}
    return {
        "lookup": wire_out(1, "Look for a position's rows, see :class:`hw.lad.prefetch.Prefetch`."),
        "lookup_head": wire_out(p.head_index, "Head of the rows."),
        "lookup_position": wire_out(p.position, "Position of the rows."),
        "copies": wire_out(1, "The rows of a hit go to their slot."),
        "known": wire_in(1, "The answer is there."),
        "hit": wire_in(1, "Whether the rows were loaded ahead."),
        "hit_k": wire_in(p.row_layout, "Row of K, with `hit`."),
        "hit_v": wire_in(p.row_layout, "Row of V, with `hit`."),
    }


def fetch_layout(p: LadTileParameters) -> data.StructLayout:
    """A head and its kv head."""
    return data.StructLayout({"head": p.head_index, "kv_head": p.kv_head_index})


def fetched_layout(p: LadTileParameters) -> data.StructLayout:
    """``rows`` read of a head; ``hits``: active positions whose K and V had been prefetched."""
    return data.StructLayout({"rows": p.rows_count, "hits": p.number})


def position_rows_layout(p: LadTileParameters) -> data.StructLayout:
    """A position's rows of K and V."""
    return data.StructLayout({"k": p.row_layout, "v": p.row_layout})


def _label_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout({"number": index(p.label_bits - 2), "kind": Kind})
