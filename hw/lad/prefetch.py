"""Rows of the positions that were active in the last step, loaded ahead (LAD, IV-D and Fig. 6)."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, memory

from hw.component import Component
from hw.lad.caches.row_memory import row_memory
from hw.lad.tile_parameters import LadTileParameters
from hw.layout import count, index
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out


class Kind(enum.IntEnum, shape=2):
    """What a row is."""

    G = 0
    KEY = 1
    VALUE = 2


class Prefetch(Component[LadTileParameters]):
    """A row memory for K and V, filled between two steps and searched in the second one.

    ::

        command ─→ rows of G ─→ active positions ─→ K[j], V[j] ─→ memory, tag = head, j
        lookup ─→ compare with the front tag ─→ hit, K, V

    A command is a head: the rows of its first `most` positions that were active in the last step
    are added, as long as there is room. Heads must be added in ascending order. Lookups come in the
    same order, so only the front tag is compared: tags below the one looked up are skipped.

    Cycles: 2 for each position and 3 for each row of G, and the memory's latency for each of these.
    A lookup is known at once, but for a cycle for each tag skipped.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(prefetch_layout(p)),
            "empty": wire_in(1, "Drop all rows; no command may be under way."),
            "busy": wire_out(1),
            "request": stream_out(p.block_memory.read_layout),
            "response": stream_in(p.block_memory.response_layout),
            "lookup": wire_in(
                1, "Look for `head` and `position`; not while `busy`, nor in the cycle after."
            ),
            "head": wire_in(p.head_index),
            "position": wire_in(p.position),
            "taken": wire_in(1, "The rows of a hit are taken, and not looked up again."),
            "known": wire_out(1, "The answer to `lookup` is valid."),
            "hit": wire_out(1, "The row is in this memory, valid with `known`."),
            "k": wire_out(p.row_layout, "Row of K, with a hit."),
            "v": wire_out(p.row_layout, "Row of V, with a hit."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        used = Signal(range(p.prefetch + 1))  # rows of K and V here
        tag_layout = data.StructLayout({"position": p.position, "head": p.head_index})
        # K and V of a position have the same place in two memories, and its tag in a third.
        rows = {}
        label = data.View(_label_layout(p), self.response.payload.tag)
        for kind in (Kind.KEY, Kind.VALUE):
            name = kind.name.lower()
            store = row_memory(p.row_bits, p.prefetch)
            m.submodules[f"{name}_rows"] = store
            write = store.write_port()
            m.d.comb += [
                write.addr.eq(label.number),
                write.data.eq(self.response.payload.data),
                write.en.eq(self.response.valid & (label.kind == kind)),
            ]
            rows[kind] = store.read_port()
        tags = memory.Memory(shape=tag_layout.size, depth=p.prefetch, init=[])
        m.submodules.tags = tags
        new_tag = tags.write_port()
        self._fill(m, used, new_tag, tag_layout, label)
        self._find(m, used, tags.read_port(), tag_layout, rows)
        return m

    def _fill(self, m: Module, used: Signal, new_tag, tag_layout, answered) -> None:
        """Rows of a command's active positions into the memory, each with its tag."""
        p = self.parameters
        request, response = self.request, self.response
        command = Signal(prefetch_layout(p), reset_less=True)
        remaining = Signal(p.d)  # active positions of the current row of G
        lowest = Signal(range(p.d))
        row = Signal(range(p.table_rows + 1))
        credit = Signal(range(p.prefetch + 1))  # positions that may still be added for this head
        waiting = Signal(range(2 * p.prefetch + 2))  # responses
        position = Signal(p.position)
        label = Signal(_label_layout(p))
        tag = Signal(tag_layout)
        self._lowest(m, remaining, lowest)
        accepted = Signal()
        m.d.comb += [
            accepted.eq(request.valid & request.ready),
            request.payload.tag.eq(label),
            label.number.eq(used),
            response.ready.eq(1),
            position.eq((row << p.element_bits) + lowest),
            tag.position.eq(position),
            tag.head.eq(command.head),
            new_tag.addr.eq(used),
            new_tag.data.eq(tag),
        ]
        # Responses come in any order: the prefetch has ended when as many are here as requests.
        m.d.sync += waiting.eq(waiting + accepted - response.valid)
        free = Signal.like(credit)
        most = self.command.payload.most
        # The budget of a head is fixed as it begins: its own share, or what is left of the memory.
        m.d.comb += free.eq(p.prefetch - used)
        with m.If(self.empty):
            m.d.sync += used.eq(0)
        with m.FSM() as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE") | (waiting != 0))
            with m.State("IDLE"):
                # A command begins at the head's first row of G, once no row is on its way.
                m.d.comb += self.command.ready.eq(waiting == 0)
                m.d.sync += row.eq(0)
                with m.If(self.command.valid & self.command.ready):
                    m.d.sync += command.eq(self.command.payload)
                    m.d.sync += credit.eq(Mux(most < free, most, free))
                    m.next = "G"
            with m.State("G"):
                # A row of words, unless there are no more or no credit.
                with m.If(((row << p.element_bits) >= command.n) | (credit == 0)):
                    m.next = "IDLE"
                with m.Else():
                    m.d.comb += label.kind.eq(Kind.G)
                    self._ask(m, "g", command.head, row)
                    with m.If(request.ready):
                        m.next = "WORDS"
            with m.State("WORDS"):
                # Its positions that were active; beyond `n` there are old words.
                with m.If(response.valid & (answered.kind == Kind.G)):
                    m.d.sync += remaining.eq(self._active(row, command.n))
                    m.next = "KEY"
            with m.State("KEY"):
                # Request the lowest one's K, then its V; its tag is written with them.
                with m.If(~remaining.any() | (credit == 0)):
                    m.d.sync += row.eq(row + 1)
                    m.next = "G"
                with m.Else():
                    m.d.comb += label.kind.eq(Kind.KEY)
                    self._ask(m, "k", command.kv_head, position)
                    with m.If(request.ready):
                        m.next = "VALUE"
            with m.State("VALUE"):
                # The position is complete once its V is requested: on to the next one.
                m.d.comb += [label.kind.eq(Kind.VALUE), new_tag.en.eq(1)]
                self._ask(m, "v", command.kv_head, position)
                with m.If(request.ready):
                    m.d.sync += [
                        remaining.eq(remaining & (remaining - 1)),
                        used.eq(used + 1),
                        credit.eq(credit - 1),
                    ]
                    m.next = "KEY"

    def _lowest(self, m: Module, remaining: Signal, lowest: Signal) -> None:
        """The lowest position of a row that remains."""
        for lane in reversed(range(self.parameters.d)):
            with m.If(remaining[lane]):
                m.d.comb += lowest.eq(lane)

    def _ask(self, m: Module, region: str, part: Value, row: Value) -> None:
        """Request a row of a head's or kv head's part of a table."""
        p, request = self.parameters, self.request
        m.d.comb += [
            request.valid.eq(1),
            request.payload.address.eq(p.regions[region].address_of(part, row)),
        ]

    def _active(self, row: Signal, n: Value) -> Value:
        """Positions before `n` whose words, in a response with a row of G, are active; [d] bits."""
        p = self.parameters
        words = data.ArrayLayout(p.word_layout, p.d)(Value.cast(self.response.payload.data))
        first = row << p.element_bits
        return Cat(word.active & (first + lane < n) for lane, word in enumerate(words))

    def _find(self, m: Module, used: Signal, tags, tag_layout, rows) -> None:
        """Compare with the tag at the front, which moves by at most one in each cycle."""
        p = self.parameters
        front = Signal(range(p.prefetch + 1))
        after = Signal.like(front)  # the front of the next cycle, whose tag and rows are read now
        valid = Signal()
        tag = Signal(tag_layout)
        below = Signal()
        wanted = Signal(tag_layout)
        m.d.comb += [
            # Tags ascend, so one below what is looked up will not be wanted.
            after.eq(front + (self.taken | (self.lookup & below))),
            tags.addr.eq(after),
            *(port.addr.eq(after) for port in rows.values()),
            tag.eq(tags.data),
            valid.eq(front != used),
            wanted.position.eq(self.position),
            wanted.head.eq(self.head),
            below.eq(valid & (tag.as_value() < wanted.as_value())),
            # A lookup that finds the memory's end is answered at once: not here, so requested as
            # usual.
            self.known.eq(~below),
            self.hit.eq(valid & (tag.as_value() == wanted.as_value())),
            self.k.eq(rows[Kind.KEY].data),
            self.v.eq(rows[Kind.VALUE].data),
        ]
        m.d.sync += front.eq(after)
        # Lookups start with the first tag again. It is read while rows are on their way, in which
        # nothing is looked up.
        with m.If(self.empty):
            m.d.sync += front.eq(0)


def prefetch_layout(p: LadTileParameters) -> data.StructLayout:
    """A head of the step to come: rows of at most ``most`` of its first ``n`` positions."""
    return data.StructLayout(
        {
            "head": p.head_index,
            "kv_head": p.kv_head_index,
            "n": p.number,
            "most": count(range(p.prefetch + 1)),
        }
    )


def _label_layout(p: LadTileParameters) -> data.StructLayout:
    return data.StructLayout({"number": index(p.label_bits - 2), "kind": Kind})
