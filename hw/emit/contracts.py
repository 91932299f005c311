"""What a block asks of whatever is connected to it: rules of its streams and of its memories.

The Verilog's header, the sidecar, ``hw show`` and docs/verilog.md have them from here.
"""

from hw.parameters import Parameters
from hw.ports import stream_of

STREAM_RULES = (
    "A beat moves at each rising edge of clk at which valid and ready are both 1 and rst is 0.",
    (
        "A producer raises valid without waiting for ready, and from then on holds valid and "
        "payload until the beat has moved."
    ),
    "A consumer may wait for valid, and may lower ready at any time.",
    "A payload means nothing while valid is 0.",
    "Where a rule is broken, beats are lost, doubled or changed, and no flag shows it.",
)
MEMORY_RULES = (
    (
        "A read returns what its address holds as the request is accepted: it sees every write "
        "accepted before it, and none accepted after it."
    ),
    "A write gets no response; a read gets one, with its tag unchanged.",
    (
        "A response comes in the cycle after its request or later, without an upper limit, and may "
        "wait longer than another read's."
    ),
    "Addresses count rows.",
    "With a reset of the block the memory drops the requests that it has not answered.",
    (
        "Where a rule is broken, the block computes with wrong data: outputs are wrong, and no "
        "flag shows it."
    ),
)
ORDERS = {
    "any": "Responses may overtake each other.",
    "requests": "Responses come in the order of their requests.",
}
"""By ``order`` of :func:`memories`, its rule."""


def streams(ports: list[dict]) -> list[dict]:
    """Name and direction of each stream among the ports of :func:`hw.ports.list_ports`."""
    return [
        {"name": stream_of(port["name"]), "direction": port["direction"]}
        for port in ports
        if port["name"].endswith("__payload")
    ]


def memories(ports: list[dict], parameters: Parameters) -> list[dict]:
    """The streams of each external memory among the ports, and the fields of their payloads.

    ``request`` and ``response`` name streams; ``address``, ``tag``, ``write`` and ``data`` name
    fields or structures of fields; ``tag`` and ``write`` may be None. ``order`` is one of ORDERS.
    """
    payloads = {
        (stream_of(port["name"]), port["direction"]): [
            field["name"].partition(".")[0].partition("[")[0] for field in port.get("fields", ())
        ]
        for port in ports
        if port["name"].endswith("__payload")
    }
    found = []
    # A memory is recognised by its streams: requests with an address that leave, and responses of
    # the matching name that come in.
    for (request, direction), asked in payloads.items():
        response = request.replace("request", "response")
        answered = payloads.get((response, "input"), ())
        if direction == "output" and response != request and "address" in asked and answered:
            # The tag is the field that both have; without one, responses must come in order.
            tag = next((name for name in asked if name in answered and name != "data"), None)
            any_order = tag is not None and not parameters.responses_in_order
            found.append(
                {
                    "request": request,
                    "response": response,
                    "address": "address",
                    "tag": tag,
                    "write": "write" if "write" in asked else None,
                    "data": "data",
                    "order": "any" if any_order else "requests",
                }
            )
    return found


def as_json(ports: list[dict], parameters: Parameters) -> dict:
    """The sidecar's ``streams`` and ``memories``, each with its rules."""
    return {
        "streams": {"ports": streams(ports), "rules": [*STREAM_RULES]},
        "memories": {"ports": memories(ports, parameters), "rules": [*MEMORY_RULES]},
    }


def paragraphs(ports: list[dict], parameters: Parameters) -> list[str]:
    """The rules that a block needs, in words."""
    said = []
    if streams(ports):
        said.append(" ".join(["Streams:", *STREAM_RULES]))
    found = memories(ports, parameters)
    for order, rule in ORDERS.items():
        if names := [memory["request"] for memory in found if memory["order"] == order]:
            title = f"Memory behind {', '.join(names)}:"
            said.append(" ".join([title, *MEMORY_RULES[:3], rule, *MEMORY_RULES[3:]]))
    return said
