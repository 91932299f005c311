"""A core that does not do what its paper is about fails, at its default size and in a model."""

import pytest

from hw.baseline.h2o_core import H2oCoreParameters
from hw.catalogue import find
from hw.lad.tile_parameters import LadTileParameters
from hw.topick.core_parameters import TopickCoreParameters
from hw.tsuru.tsuru_core import TsuruCoreParameters
from hw.unicaim.unicaim_core import UnicaimCoreParameters
from sim.core.design import generate
from sim.drivers.run import load_testbench
from sim.drivers.run import run as simulate
from tests.sim.generate.test_generate_mutants import CORES
from tests.support.ideas import IDEAS, CoreWithoutIdea
from tests.support.sim.generated import attention_command, write_llama

H2O = H2oCoreParameters(8, 16, 4, 2, 8)
UNICAIM = UnicaimCoreParameters(
    16, 8, query_bits=3, kv_heads=2, group=2, array="serial", accumulators=8
)
TSURU = TsuruCoreParameters(8, 64, 4, 2, 2, 8, kept=8)
TOPICK = TopickCoreParameters(d=8, lanes=2, heads=4, kv_heads=2, tokens=32, entries=8)
MODELS = {
    name: (core.parameters, f"--capacity 6 {core.options}") for name, core in CORES.items()
} | {
    "lad.lad_tile": (LadTileParameters(d=8, heads=4, kv_heads=2), ""),
    "unicaim.unicaim_core": (UNICAIM, "--capacity 16 --top-k 4"),
    "tsuru.tsuru_core": (TSURU, "--set capacity=64 --set depth=8 --set kept=8 --above 0.05"),
    "baseline.h2o_core": (H2O, "--capacity 6 --set capacity=16 --set depth=8"),
    "topick.topick_core": (TOPICK, "--set tokens=32 --set entries=8 --threshold 0.05"),
}
"""Parameters of each core, and the options of ``sim generate`` that give them."""


@pytest.mark.campaign
@pytest.mark.parametrize("name", IDEAS)
def test_a_core_without_its_idea_fails(name, tmp_path, monkeypatch):
    """Under its default parameters, without stalls, with the vectors that `sim run` has."""
    monkeypatch.chdir(tmp_path)
    block = find(name)
    parameters = block.parameters_class()
    core = CoreWithoutIdea(tmp_path, generate(block, parameters))
    vectors = load_testbench(block).default_vectors(parameters)
    options = {"driver": "harness", "vectors": vectors, "stall": "none", "verilog": core.path}
    for idea in (None, *core.ideas):
        core.select(idea)
        result = simulate(block, "default", parameters, trust=True, **options)
        assert result.passed == (idea is None), idea


@pytest.mark.campaign
@pytest.mark.parametrize("stall", ["random", "bursts", "long"])
def test_tokens_pruned_late_are_found_under_stalls(stall, tmp_path, monkeypatch):
    """By bounds of the core's decisions, whose order is not predicted then."""
    monkeypatch.chdir(tmp_path)
    block = find("topick.topick_core")
    parameters = block.parameters_class()
    core = CoreWithoutIdea(tmp_path, generate(block, parameters))
    vectors = load_testbench(block).default_vectors(parameters)
    options = {"driver": "harness", "vectors": vectors, "stall": stall, "verilog": core.path}
    late = [idea for idea in core.ideas if idea.name.startswith("prunes")]
    for idea in (None, *late):
        core.select(idea)
        result = simulate(block, "default", parameters, trust=True, **options)
        assert result.passed == (idea is None), idea


@pytest.mark.campaign
@pytest.mark.parametrize("name", IDEAS)
def test_a_model_on_a_core_without_its_idea_stops(run, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "cache"))
    parameters, options = MODELS[name]
    llama = write_llama(tmp_path, layers=2)  # as many as VEDA's core has contexts
    line = attention_command(llama, name, f"--tokens 24 {options}")
    core = CoreWithoutIdea(tmp_path, generate(find(name), parameters))
    for idea in (None, *core.ideas):
        core.select(idea)
        status, _, err = run(f"{line} --verilog {core.path} --trust")
        assert status == (idea is not None), idea
        assert not status or f"error: {name}, layer" in err, idea
