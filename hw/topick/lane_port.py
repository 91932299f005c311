"""A lane's memory port: chunks of keys for step 0 and of values for step 1."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data

from hw.component import Component
from hw.layout import index, integer, position
from hw.ports import Ports, stream_in, stream_out, wire_in
from hw.topick.core_parameters import TopickCoreParameters


class LanePort(Component[TopickCoreParameters]):
    """Merges a lane's requests and parts the responses.

    The planes of a lane's memory, one word a row::

        kv head | K or V | chunk | row
        0         K        0       0 1 2 ... rows - 1
        0         K        1       0 1 2 ... rows - 1
        ...
        0         V        0       0 1 2 ... rows - 1

    so that the first chunks of a head's keys, which are always read, are neighbours.

    Latency: 1 cycle to the request, none to a response. Throughput: a request and a response per
    cycle. Requests of keys precede requests of values.
    """

    def ports(self) -> Ports:
        p = self.parameters
        probability = integer(p.probability_bits)
        chunk = index(range(p.lane.chunks))
        value = {"row": position(p.row_bits), "chunk": chunk, "p": probability}
        response = {"p": probability, "chunk": chunk, "data": p.lane.chunk_layout}
        response |= p.lane.rest_field
        return {
            "key_head": wire_in(p.kv_head_index, "The kv head of the keys' requests, step 0."),
            "value_head": wire_in(p.kv_head_index, "The kv head of the values' requests, step 1."),
            "key_request": stream_in(p.lane.tag_layout),
            "value_request": stream_in(data.StructLayout(value)),
            "request": stream_out(p.memory.read_layout),
            "response": stream_in(p.row_response_layout),
            "key_response": stream_out(p.lane.response_layout),
            "value_response": stream_out(data.StructLayout(response)),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        key, value = self.key_request.payload, self.value_request.payload
        room = Signal()  # in the output register
        is_value = Signal()
        head = Signal.like(self.key_head)
        plane = Signal(range(p.planes))
        read = Signal(p.memory.read_layout)
        above = value.p[len(key.slot) :]
        m.d.comb += [
            # Keys go first: step 0 decides how soon the next head can start, values only follow.
            room.eq(~self.request.valid | self.request.ready),
            is_value.eq(~self.key_request.valid),
            self.key_request.ready.eq(room),
            self.value_request.ready.eq(room & is_value),
            head.eq(Mux(is_value, self.value_head, self.key_head)),
            read.tag.value.eq(is_value),
            read.tag.chunk.eq(Mux(is_value, value.chunk, key.chunk)),
            read.tag.row.eq(Mux(is_value, value.row, key.token)),
            # A slot is the label's lower bits; the others are not looked at when it comes back.
            read.tag.label.eq(Mux(is_value, value.p, Cat(key.slot, above))),
            # Address: planes of K and V in turn for each kv head, a plane a chunk of all rows.
            plane.eq((head * 2 + is_value) * p.lane.chunks + read.tag.chunk),
            read.address.eq(Cat(read.tag.row, plane)),
        ]
        # The request leaves from a register, so the lane's arbitration is not in the memory's path.
        with m.If(room):
            m.d.sync += [
                self.request.valid.eq(self.key_request.valid | self.value_request.valid),
                self.request.payload.eq(read),
            ]
        tag = self.response.payload.tag
        # The tag says whose a response is: the label is a slot for K and a probability for V.
        to_key, to_value = self.key_response, self.value_response
        m.d.comb += [
            to_key.valid.eq(self.response.valid & ~tag.value),
            to_key.payload.tag.token.eq(tag.row),
            to_key.payload.tag.chunk.eq(tag.chunk),
            to_key.payload.tag.slot.eq(tag.label),
            to_key.payload.data.eq(self.response.payload.data),
            to_value.valid.eq(self.response.valid & tag.value),
            to_value.payload.p.eq(tag.label),
            to_value.payload.chunk.eq(tag.chunk),
            to_value.payload.data.eq(self.response.payload.data),
            # A response that its step cannot take holds up the others behind it.
            self.response.ready.eq(Mux(tag.value, to_value.ready, to_key.ready)),
        ]
        if p.lane.whole:
            rest = self.response.payload.rest
            m.d.comb += [to_key.payload.rest.eq(rest), to_value.payload.rest.eq(rest)]
        return m
