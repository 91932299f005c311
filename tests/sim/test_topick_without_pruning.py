"""ToPick's core without its idea, or slower: ``sim run`` says so at every size, of any Verilog."""

import dataclasses
import re

import pytest

from hw.catalogue import find
from hw.export import export
from hw.topick.topick_core import TopickCoreParameters

MUTANTS = {
    "prunes nothing": (r"assign prune = (_\d+_ &)", r"assign prune = 1'h0 & \1"),
    "prunes at the last chunk alone": (r"assign prune = (_\d+_ &)", r"assign prune = last & \1"),
    "a cycle or two more a head": (r"(settling_next = )3'h[56]", r"\g<1>3'h7"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("preset", ["small", "default"])
def test_a_core_without_its_idea_does_not_pass(run, tmp_path, preset, mutant):
    """In a user's Verilog, on the trace and without stalls; nothing observes the decisions."""
    p = dataclasses.replace(TopickCoreParameters.preset(preset), observe=False)
    text, count = re.subn(*MUTANTS[mutant], export(find("topick.topick_core"), p).verilog)
    assert count
    path = tmp_path / "mutant.v"
    path.write_text(text)
    command = f"run topick.topick_core --preset {preset} --set observe=0 --driver harness"
    status, out, err = run(f"{command} --stall none --trust --verilog {path}")
    assert status == 1, out + err
    assert re.search("decided__|took" if "cycles" not in mutant else "took", out + err)
