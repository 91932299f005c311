"""The memory model in a cocotb testbench: answers a design's requests until the test ends."""

from sim.core.memory import MemoryFault, MemoryModel, MemoryPort
from sim.core.stalls import Throttle
from sim.drivers.cocotb.stream import Port, Ticks


async def serve(
    ticks: Ticks,
    request: Port,
    response: Port,
    fields: MemoryPort,
    model: MemoryModel,
    ready: Throttle,
    valid: Throttle,
) -> str:
    """Take requests with pauses as `ready` says, answer them with pauses as `valid` says.

    Start it beside the sources and sinks, before ``ticks.count()``, so that all count alike. It
    ends only on a request out of range, with the sentence that says so.
    """
    offering, now = False, -1
    response.valid.value = 0
    response.payload.value = 0
    while True:
        request.ready.value = int(ready.step())
        if not offering and valid.step():
            answer = model.response(now + 1)
            if answer is not None:
                response.payload.value = fields.response(*answer)
                offering = True
        response.valid.value = int(offering)
        await ticks.trigger()
        now = ticks.cycle
        if response.transfers():
            offering = False
            ticks.last_transfer = now
        if request.transfers():
            ticks.last_transfer = now
            try:
                model.request(now, *fields.request(int(request.payload.value)))
            except MemoryFault as fault:
                return str(fault)
