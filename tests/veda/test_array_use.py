# amaranth: UnusedElaboratable=no
"""How much of a step the array is in use, whatever the memory's latency."""

import numpy as np
import pytest

from hw.veda.veda_core import VedaCoreParameters
from sim.core.memory import MemoryTiming
from sim.testbenches.veda.veda_core import A, B, Steps
from tests.veda.test_veda_core import RNG, Core, every_length


def use_of_the_array(p: VedaCoreParameters, heads: int, group: int, length: int) -> float:
    """Share of cycles from a step's command to its last o in which the array has a row."""
    return 2 * length * heads / p.cycles([(length, heads, group, False, 0)])


def test_the_array_is_hardly_ever_idle():
    """With heads that share rows, and with heads that do not; see docs/veda.md."""
    p = VedaCoreParameters()
    assert use_of_the_array(p, 9, 3, 128) > 0.95
    assert p.cycles([(128, 9, 3, False, 0)]) <= 2 * 9 * 128 + 100
    one = VedaCoreParameters(capacity=512, kv_heads=9)
    assert use_of_the_array(one, 9, 1, 256) > 0.95


@pytest.mark.campaign
def test_a_far_memory_delays_the_first_key_alone():
    """Nine heads of three on 128 rows: all orders of responses, on latencies up to `depth` - 3."""
    p = VedaCoreParameters()
    core, steps, rng = Core(p), Steps(p), RNG(1)
    for t in range(132):
        rows = (rng.standard_normal((n, p.d)).astype(np.float16) for n in (9, 3, 3))
        fields = {"vote": t >= 128, "evict": t >= 127, "target": 127, "protected": 0}
        steps.add(*rows, restart=t == 0, a=A, b=B, **fields)
    stimulus = steps.stimulus([])
    for latency in (1, 128, p.depth - 3):
        for timing in (MemoryTiming((latency, latency)), MemoryTiming((1, latency), reorder=True)):
            outcome = core.check(stimulus, timing=timing)
            taken = np.asarray(outcome.cycles_of["o"]).reshape(-1, 9)[-4:]
            before = np.asarray(outcome.cycles_of["report"])[-5:-1]
            assert (taken[:, -1] - taken[:, 0] == 1844).all()
            assert (taken[:, -1] - before <= 2 * 9 * 128 + 89 + latency).all()
            assert outcome.memories["memory"].rows_read == sum(map(p.rows_read, steps.work))
        assert core.check(stimulus, timing=MemoryTiming((latency, latency))).cycles == p.cycles(
            steps.work, latency
        )


@pytest.mark.campaign
def test_cycles_of_every_length_with_two_stages_of_multipliers():
    p = VedaCoreParameters(2, 2, 1, 16, 4, 1, 8, "fp16", 8, 4, multiply_stages=2, parallel=4)
    core = Core(p)
    for heads in (1, 2, 3, 4):
        every_length(core, p, heads)
