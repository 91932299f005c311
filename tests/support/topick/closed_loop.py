"""A lane in a closed loop with models of memory and denominator, in Amaranth's simulator.

Every decision is compared with the bit-exact model, which replays the chunks in the order in which
they arrived, each with the logarithm that the lane saw.
"""

import dataclasses
import random

import numpy as np
from amaranth.hdl import Value
from amaranth.sim import Simulator

from golden.algorithms.topick.decide import request_order
from golden.topick.dag import Denominator
from golden.topick.margin_generator import scaled_margins
from golden.topick.pe_lane import Head, PeLane, chunk_of
from hw.topick.pe_lane import PeLane as PeLaneHardware
from hw.topick.pe_lane import PeLaneParameters
from sim.core import payload
from sim.core.memory import MemoryModel, MemoryTiming
from sim.testbenches.topick.pe_lane import sizes_of

DELAY = 3  # cycles from a difference to a logarithm that includes it, in the denominator's model
TIMEOUT_CYCLES = 1000
OTHER = PeLaneParameters(
    d=3,
    bits=6,
    chunk_bits=3,
    scale_bits=5,
    shift_bits=0,
    width=13,
    fraction=3,
    precision=4,
    limb=4,
    threshold_bits=6,
    entries=2,
    token_bits=5,
    probability_bits=8,
)
"""Parameters in which no size is a preset's."""


@dataclasses.dataclass
class Record:
    """The transfers of a head.

    arrivals
        Token, chunk and slot of each response, in the order in which they were taken.
    taken
        The cycle of each.
    requested
        The cycle in which the last token's first chunk was requested.
    seen
        For each decision, whether the denominator was known, and its logarithm.
    """

    arrivals: list = dataclasses.field(default_factory=list)
    taken: list = dataclasses.field(default_factory=list)
    requests: list = dataclasses.field(default_factory=list)
    requested: int = 0
    seen: list = dataclasses.field(default_factory=list)
    differences: list = dataclasses.field(default_factory=list)
    kept: dict = dataclasses.field(default_factory=dict)
    ended: bool = False

    @property
    def busy(self) -> float:
        """Share of the cycles with a chunk, while there are tokens left to request."""
        within = [cycle for cycle in self.taken if cycle <= self.requested]
        return len(within) / (self.requested - self.taken[0] + 1)


def run(
    p: PeLaneParameters,
    heads: list[tuple[Head, np.ndarray]],
    timing: MemoryTiming,
    *,
    holds: int | None = None,
    stall: float = 0.0,
    seed: int = 0,
) -> list[Record]:
    """Run heads, each with its keys' codes ``[tokens, d]``, one after the other.

    holds
        Requests that the memory takes before a response must be taken; unlimited if None.
    stall
        How often the denominator and the sinks of the lane's outputs are not ready.
    """
    dut = PeLaneHardware(p)
    records = [Record() for _ in heads]
    rng = random.Random(seed)

    async def testbench(ctx):
        cycle = 0
        for (head, k), record in zip(heads, records, strict=True):
            cycle = await _head(ctx, dut, p, head, k, timing, record, cycle, holds, stall, rng)

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(testbench)
    simulator.run()
    return records


@dataclasses.dataclass
class Loop:
    """A head in progress: what surrounds the lane.

    tokens
        Not yet taken.
    offered
        The response at the port: its tag and data.
    log2
        The denominator at the port: whether it is known, and its logarithm.
    delayed
        Differences with the cycle from which they count.
    in_flight
        Requests without a response taken.
    """

    memory: MemoryModel
    denominator: Denominator
    tokens: list[int]
    offered: tuple | None = None
    log2: tuple[bool, int] | None = None
    delayed: list = dataclasses.field(default_factory=list)
    in_flight: int = 0


async def _head(ctx, dut, p, head, k, timing, record, cycle, holds, stall, rng) -> int:
    """Run a head; returns the cycle after its last transfer."""
    z = sizes_of(p)
    rows = [
        chunk_of(k[token], chunk, z) for token in range(head.tokens) for chunk in range(p.chunks)
    ]
    loop = Loop(
        MemoryModel(payload.pack(p.chunk_layout, {"": np.array(rows)}), timing),
        Denominator(limb=p.limb, fraction=p.fraction),
        request_order(np.array([head.tokens - 1]), head.tokens)[:, 0].tolist(),
    )
    ctx.set(Value.cast(dut.command.payload), _command(p, head))
    ctx.set(dut.command.valid, 1)
    ctx.set(dut.value.valid, 0)
    idle = 0
    while not record.ended:
        _drive(ctx, dut, p, loop, cycle, holds, stall, rng)
        command_taken = _fires(ctx, dut.command)
        moved = _transfer(ctx, dut, p, loop, record, cycle)
        await ctx.tick()
        if command_taken:
            ctx.set(dut.command.valid, 0)
        idle = 0 if moved or command_taken else idle + 1
        assert idle < TIMEOUT_CYCLES, f"no transfer for {idle} cycles up to cycle {cycle}"
        cycle += 1
    # The head's last difference may follow its last score.
    ctx.set(dut.decided.ready, 0)
    ctx.set(dut.difference.ready, 1)
    if ctx.get(dut.difference.valid):
        found = ctx.get(dut.difference.payload)
        record.differences.append((found.limb, found.high, found.low))
    await ctx.tick()
    assert not ctx.get(dut.difference.valid)
    return cycle + 1


def _fires(ctx, port) -> bool:
    return bool(ctx.get(port.valid) and ctx.get(port.ready))


def _drive(ctx, dut, p, loop: Loop, cycle: int, holds, stall, rng) -> None:
    """Set the lane's inputs and the ready signals of its outputs for this cycle."""
    ctx.set(dut.token.valid, bool(loop.tokens))
    if loop.tokens:
        ctx.set(dut.token.payload, loop.tokens[0])
    if loop.offered is None:
        loop.offered = loop.memory.response(cycle)
        if loop.offered is not None:
            tag, row = loop.offered
            ctx.set(dut.response.payload.as_value(), tag | row << payload.width(p.tag_layout))
    ctx.set(dut.response.valid, loop.offered is not None)
    while loop.delayed and loop.delayed[0][0] <= cycle:
        loop.denominator.add(*loop.delayed.pop(0)[1])
    if loop.log2 is None and rng.random() >= stall:
        loop.log2 = loop.denominator.log2()
        ctx.set(dut.log_denominator.payload, {"known": loop.log2[0], "log2": loop.log2[1]})
    ctx.set(dut.log_denominator.valid, loop.log2 is not None)
    room = holds is None or loop.in_flight < holds
    ctx.set(dut.request.ready, room and rng.random() >= stall)
    ctx.set(dut.difference.ready, rng.random() >= stall)
    ctx.set(dut.decided.ready, rng.random() >= stall)


def _transfer(ctx, dut, p, loop: Loop, record: Record, cycle: int) -> bool:
    """Record this cycle's transfers; whether there is one."""
    moved = False
    if loop.tokens and ctx.get(dut.token.ready):
        loop.tokens.pop(0)
        record.requested, moved = cycle, True
    if _fires(ctx, dut.request):
        tag = ctx.get(dut.request.payload)
        record.requests.append((tag.token, tag.chunk, tag.slot))
        bits = ctx.get(dut.request.payload.as_value())
        loop.memory.request(cycle, bits, tag.token * p.chunks + tag.chunk)
        loop.in_flight, moved = loop.in_flight + 1, True
    if loop.offered is not None and ctx.get(dut.response.ready):
        tag = ctx.get(dut.response.payload.tag)
        record.arrivals.append((tag.token, tag.chunk, tag.slot))
        record.taken.append(cycle)
        loop.offered, loop.in_flight, moved = None, loop.in_flight - 1, True
    if loop.log2 is not None and ctx.get(dut.log_denominator.ready):
        record.seen.append(loop.log2)
        loop.log2, moved = None, True
    if _fires(ctx, dut.difference):
        found = ctx.get(dut.difference.payload)
        record.differences.append((found.limb, found.high, found.low))
        loop.delayed.append((cycle + DELAY, record.differences[-1]))
        moved = True
    if _fires(ctx, dut.decided):
        beat = ctx.get(dut.decided.payload)
        if beat.kept:
            record.kept[beat.token] = beat.t
        record.ended, moved = bool(beat.last), True
    return moved


def _command(p: PeLaneParameters, head: Head) -> int:
    most, least = scaled_margins(
        head.q, head.mantissa, head.shift, bits=p.bits, chunk_bits=p.chunk_bits, base=p.base
    )
    fields = {"q": head.q[None], "most": most[None], "least": least[None]}
    for name in ("mantissa", "shift", "threshold", "tokens", "exempt"):
        fields[name] = np.array([getattr(head, name)])
    return payload.to_ints(payload.pack(p.command_layout, fields))[0]


def check(p: PeLaneParameters, heads: list[tuple[Head, np.ndarray]], records: list[Record]) -> None:
    """Every decision is the model's; the final denominator is the sum over the kept tokens."""
    z = sizes_of(p)
    lane = PeLane(z)
    for (head, k), record in zip(heads, records, strict=True):
        assert record.ended and len(record.seen) == len(record.arrivals)
        lane.begin(head)
        firsts = [(token, slot) for token, chunk, slot in record.requests if chunk == 0]
        order = request_order(np.array([head.tokens - 1]), head.tokens)[:, 0].tolist()
        assert [token for token, _ in firsts] == order
        denominator = Denominator(limb=p.limb, fraction=p.fraction)
        differences: list[tuple[int, int, int]] = []
        requests: list[tuple[int, int, int]] = []
        kept: dict[int, int] = {}
        terms: list[tuple[int, int]] = []
        waiting = list(firsts)
        for (token, chunk, slot), (known, log2) in zip(record.arrivals, record.seen, strict=True):
            while waiting and lane.scoreboard.free:
                assert lane.scoreboard.take() == waiting.pop(0)[1]
            d = lane.decide(token, chunk, slot, chunk_of(k[token], chunk, z), known, log2)
            if d.difference is not None:
                differences.append(d.difference)
                denominator.add(*d.difference)
            if d.requests:
                requests.append((token, chunk + 1, slot))
            if d.kept:
                kept[token] = d.t
                terms.append(d.term)
        assert not waiting
        assert record.differences == differences
        assert [tag for tag in record.requests if tag[1]] == requests
        assert record.kept == kept
        assert d.ended
        assert denominator.number is not None
        assert denominator.units == on_grid(terms, denominator.number, p)
        check_guarantee(p, head, k, record.kept)


def on_grid(terms: list[tuple[int, int]], number: int, p: PeLaneParameters) -> int:
    """Sum of terms in units of the limb below `number`, each rounded down."""
    # A term is significand 2^-(shift + precision), a unit is 2^(limb (number - 1)).
    left = [-(shift + p.precision) - p.limb * (number - 1) for shift, _ in terms]
    return sum(
        significand << shift if shift >= 0 else significand >> -shift
        for (_, significand), shift in zip(terms, left, strict=True)
    )


def check_guarantee(p: PeLaneParameters, head: Head, k: np.ndarray, kept: dict) -> int:
    """Every token is kept whose exact probability on these operands is above the threshold.

    With a threshold of 0, whose code is all ones, all are kept.

    :returns: number of tokens above the threshold.
    """
    if head.threshold == (1 << p.threshold_bits) - 1:
        assert set(kept) == set(range(head.tokens)), "tokens were pruned at a threshold of 0"
        return head.tokens
    c = head.mantissa * 2.0 ** -(p.base + head.shift + p.fraction)
    t = (k @ head.q) * c
    power = np.exp2(t - t.max())
    probability = power / power.sum()
    above = np.flatnonzero(probability > 2.0 ** (-head.threshold / 2**p.fraction) * (1 + 1e-9))
    missing = set(above.tolist()) - set(kept)
    assert not missing, f"tokens {sorted(missing)} were pruned"
    return len(above)
