"""A memory behind two streams of a design, in a cocotb testbench.

The design's output stream of requests is answered on its input stream of responses, with the
latency, order and bandwidth of a :class:`sim.core.memory.MemoryTiming`::

    layouts = read_layouts("stream_sequential_reader_....json")
    model = MemoryModel(contents, MemoryTiming(latency=(5, 20), reorder=True))
    fields = memory_fields(layouts["request"], layouts["response"])
    ports = Port(dut, "request"), Port(dut, "response")
    server = MemoryServer(cycles, *ports, fields, model, stall="random")
"""

import cocotb

from sim.core.memory import Bits, MemoryFault, MemoryModel, MemoryPort
from sim.core.stalls import Stall
from sim.drivers.cocotb.layout import PayloadLayout
from sim.drivers.cocotb.stream import Cycles, Port, find_stall


def memory_fields(
    request: PayloadLayout,
    response: PayloadLayout,
    *,
    address: str = "address",
    tag: str | None = "tag",
    data: str = "data",
    write: str | None = None,
    write_data: str | None = None,
) -> MemoryPort:
    """Positions of a memory's fields in the payloads of its streams.

    address, write, write_data
        Fields of the request; the last two only for a memory that is written too.
    tag
        Field of both; None for a memory that answers in order.
    data
        Field of the response.
    """

    def bits(layout: PayloadLayout, path: str | None) -> Bits:
        return Bits() if path is None else Bits(*layout.span(path))

    return MemoryPort(
        address=bits(request, address),
        request_tag=bits(request, tag),
        write=bits(request, write),
        write_data=bits(request, write_data),
        response_tag=bits(response, tag),
        data=bits(response, data),
    )


class MemoryServer:
    """Accepts a design's requests and sends the responses, until the test ends.

    fields
        From :func:`memory_fields`.
    model
        Contents and timing; ``model.use`` says what was read and written.
    stall, seed
        As in :class:`sim.drivers.cocotb.stream.Source`, for both streams.
    name
        Decides the stalls, together with the seed.
    strict
        Whether a request out of range raises :class:`sim.core.memory.MemoryFault`, which fails the
        test, or only ends this server.
    fault
        The sentence about a request out of range; None before one.
    """

    def __init__(
        self,
        cycles: Cycles,
        request: Port,
        response: Port,
        fields: MemoryPort,
        model: MemoryModel,
        *,
        stall: str | Stall = "none",
        seed: object = 0,
        name: str = "memory",
        strict: bool = True,
    ):
        self._cycles, self._request, self._response = cycles, request, response
        self._fields, self.model, self._strict = fields, model, strict
        pattern = find_stall(stall)
        self._ready = cycles.throttle(pattern, pattern.ready, seed, f"{name} request")
        self._valid = cycles.throttle(pattern, pattern.valid, seed, f"{name} response")
        self.fault: str | None = None
        request.ready.value = 0
        response.valid.value = 0
        cocotb.start_soon(self._run())

    async def _run(self):
        try:
            await self._serve()
        except MemoryFault as fault:
            self.fault = str(fault)
            if self._strict:
                raise

    async def _serve(self):
        cycles, request, response = self._cycles, self._request, self._response
        fields, model, ready, valid = self._fields, self.model, self._ready, self._valid
        offering, now = False, -1
        response.payload.value = 0
        while True:
            request.ready.value = int(ready.step() and model.ready(now + 1))
            if valid.step() and not offering:
                answer = model.response(now + 1)
                if answer is not None:
                    response.payload.value = fields.response(*answer)
                    offering = True
            response.valid.value = int(offering)
            await cycles.trigger()
            now = cycles.cycle
            if response.transfers():
                offering = False
                cycles.last_transfer = now
            if request.transfers():
                cycles.last_transfer = now
                model.request(now, *fields.request(int(request.payload.value)))
