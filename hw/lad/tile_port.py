"""The tile's memory port, shared by the blocks that read and those that write."""

from amaranth.hdl import Cat, Module, Value
from amaranth.lib import wiring

from hw.component import Component
from hw.lad.caches.cache_store import cache_row_layout
from hw.lad.md import counter_row_layout
from hw.lad.tile_parameters import LadTileParameters
from hw.ports import Ports, stream_in, stream_out, wire_in
from hw.stream.arbiter import Arbiter, ArbiterParameters
from hw.stream.combine import join


class TilePort(Component[LadTileParameters]):
    """Requests of all blocks to the memory; answers to the block that requested.

    ::

        caches, counters, words ─┐                           ┌→ responses[0]
        requests[0] ─────────────┼→ arbiter ─→ request ┄┄→ response
        requests[1], … ──────────┘                           └→ responses[1], …

    A request's tag says which block it is of, and carries the block's own label. Rows of caches and
    of counters have their number in their head's table; here they get their address.

    Rows to be written and requests[0] go first, by turns: AC waits for the next head's caches, and
    they for this head's to be written. The other readers share what is left, and have the port to
    themselves while the caches are on their way.

    Throughput: a request per cycle. Latency: 1 cycle to the request, 0 from the answer.
    """

    def __init__(self, parameters: LadTileParameters, readers: int):
        self._readers = readers
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "requests": stream_in(
                p.block_memory.request_layout, "Rows to read, or to `write`."
            ).array(self._readers),
            "responses": stream_out(p.block_memory.response_layout).array(self._readers),
            "caches": stream_in(cache_row_layout(p), "Rows to be written."),
            "cache_head": wire_in(p.head_index, "Head that the rows of caches belong to."),
            "counters": stream_in(counter_row_layout(p), "Rows of counters to be written."),
            "counter_head": wire_in(p.head_index, "Head that the rows of counters belong to."),
            "words": stream_in(p.memory.request_layout, "Rows of G to be written."),
            "request": stream_out(p.memory.request_layout),
            "response": stream_in(p.memory.response_layout),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.arbiter = arbiter = Arbiter(
            ArbiterParameters(inputs=self._readers + 3), shape=p.memory.request_layout
        )
        # The arbiter alone is fair; the gate in front of it adds priority. No reader starves:
        # requests[0] and rows to be written end with their head, whose end waits for the other
        # readers.
        *ports, caches, counters, words = arbiter.i
        first = Cat(port.valid for port in (ports[0], caches, counters, words)).any()
        for source, (read, port) in enumerate(zip(self.requests, ports, strict=True)):
            waits = first if source else 0
            m.d.comb += [
                port.valid.eq(read.valid & ~waits),
                # The arbiter takes another one's request in a cycle in which this one waits.
                read.ready.eq(port.ready),
                port.payload.tag.source.eq(source),
                port.payload.tag.label.eq(read.payload.tag),
                port.payload.address.eq(read.payload.address),
                port.payload.write.eq(read.payload.write),
                port.payload.data.eq(read.payload.data),
            ]
        # Rows to be written: the row's number in the head's table to its address.
        for port, written, region, head in (
            (caches, self.caches, p.regions["cache"], self.cache_head),
            (counters, self.counters, p.regions["counter"], self.counter_head),
        ):
            m.d.comb += [
                port.valid.eq(written.valid),
                written.ready.eq(port.ready),
                port.payload.address.eq(region.address_of(head, written.payload.row)),
                port.payload.write.eq(1),
                Value.cast(port.payload.data).eq(Value.cast(written.payload.data)),
            ]
        # Rows of G come with an address, which MD's side knows; the others with a row's number.
        wiring.connect(m, wiring.flipped(self.words), words)
        m.d.comb += self.request.payload.eq(arbiter.o.payload.data)
        join(m, [arbiter.o], [self.request])
        # An answer goes to the block that its tag names.
        response, tag = self.response, self.response.payload.tag
        for source, answer in enumerate(self.responses):
            m.d.comb += [
                answer.valid.eq(response.valid & (tag.source == source)),
                answer.payload.tag.eq(tag.label),
                answer.payload.data.eq(response.payload.data),
            ]
            # An answer that its block refuses holds up the port; so blocks accept at once what they
            # requested, except a key on its way to a busy VPU, which drains by itself.
            with m.If(tag.source == source):
                m.d.comb += response.ready.eq(answer.ready)
        return m
