"""Configurations of KLLM's core, and runs of a compiled one compared with the model."""

from hw.catalogue import find
from hw.kllm.kllm_core import KllmCoreParameters
from sim.core.design import generate
from sim.core.memory import FASTEST
from sim.core.stalls import PATTERNS
from sim.core.stimulus import compare
from sim.drivers.harness.runner import Harness

BLOCK = find("kllm.kllm_core")
SMALL = KllmCoreParameters.presets()["small"]


# K no multiple of a beat, columns no multiple of the lanes, all pipeline stages.
ODD = KllmCoreParameters(
    *(50, 31, 2),
    activation_bits=3,
    weight_bits=3,
    counters=2,
    macs=16,
    outliers=2,
    entries=2,
    depth=8,
    address_width=12,
    counter_stages=3,
)

# Vectors so short and quick to cluster that they wait for each other's factors.
QUICK = KllmCoreParameters(
    *(64, 64, 1),
    activation_bits=3,
    weight_bits=2,
    counters=1,
    macs=8,
    outliers=1,
    entries=1,
    vectors=1,
    address_width=16,
)

# A column reduced in one group, and no stages before it: the outliers' sum comes last.
ONE_GROUP = KllmCoreParameters(
    *(20, 5, 1),
    activation_bits=2,
    weight_bits=1,
    counters=1,
    macs=8,
    outliers=1,
    entries=1,
    depth=4,
    address_width=8,
    counter_stages=0,
)

SMALLEST = {
    "activation_bits": 2,
    "weight_bits": 1,
    "counters": 1,
    "macs": 2,
    "outliers": 1,
    "entries": 1,
    "depth": 4,
    "address_width": 1,
    "counter_stages": 0,
}


def compiled(parameters):
    design = generate(BLOCK, parameters)
    return parameters, design, Harness(design)


def check(core, stimulus, stall="none", seed=1, timing=FASTEST):
    _, design, harness = core
    harness.reset()
    outcome = harness.run(stimulus, PATTERNS[stall], seed, timing)
    assert outcome.failure is None
    assert compare(stimulus, outcome.outputs, design.outputs, outcome.cycles_of) == []
    return outcome
