"""The tile's blocks: rules of streams; unbounded proofs.

That outputs of MD and AC are stalled is seen in their simulations; a solver takes minutes to reach
it through the arithmetic.
"""

import dataclasses

import pytest

from hw.lad.ac import Ac, AcParameters
from hw.lad.active_fetch import ActiveFetch, ActiveFetchParameters
from hw.lad.md import Md, MdParameters
from sim.checks.formal.specs import StreamRulesSpec
from tests.support.formal import prove_block, prove_stream_rules

OPTIONS = {"positions": 4, "bounds": "8", "window": 1, "heads": 1, "counter_bits": 2, "depth": 4}


def smallest(kind: type):
    return dataclasses.replace(kind.preset("small"), **OPTIONS, updates=2)


def test_rules_of_fetch():
    block = ActiveFetch(smallest(ActiveFetchParameters))
    outputs = "request key counters rows"
    prove_stream_rules(block, "active_fetch", outputs, ["command", "entry", "response"], cover=24)


@pytest.mark.campaign
def test_rules_of_md():
    block = Md(smallest(MdParameters))
    inputs = ["command", "key", "counters"]
    prove_block(StreamRulesSpec(block, ["correction", "written"], inputs), "md_rules", depth=2)


@pytest.mark.campaign
def test_rules_of_ac():
    block = Ac(smallest(AcParameters))
    inputs = ["command", "cache", "correction", "rows"]
    prove_block(StreamRulesSpec(block, ["o", "written"], inputs), "ac_rules", depth=2)
