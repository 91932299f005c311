"""A language model whose attention is two of LAD's tiles: the tile's text, heads in any order."""

import pytest

from golden.lm.commands import open_model
from hw.lad.system_parameters import LadSystemParameters
from sim.commands.engines.lad.attention import LadAttention
from sim.commands.engines.lad.lad_system import LadSystemAttention, engine
from tests.sim.generate.test_generate_lad import SETTINGS
from tests.support.sim.generated import attention_command, result_of

pytestmark = pytest.mark.campaign


@pytest.fixture
def generated(run, model):
    def command(options="", block="lad.lad_system"):
        return run(attention_command(model, block, f"{SETTINGS} {options}"))

    return command


def test_it_speaks_as_one_tile(generated):
    """Bits of all heads equal one tile's that has all, in fewer cycles; any memory."""
    both = result_of(generated)
    one = result_of(lambda options: generated(options, block="lad.lad_tile"))
    assert both["tokens"] == one["tokens"] and both["mismatches"] == 0
    assert both["figures"]["active"] == one["figures"]["active"]
    assert both["figures"]["rows"] == one["figures"]["rows"]
    assert both["blocks"]["lad.lad_system"]["tiles"] == 2
    assert both["cycles"] < one["cycles"]
    apart = result_of(generated, "--set memory_ports=2")
    assert apart["tokens"] == one["tokens"] and apart["cycles"] < both["cycles"]
    assert apart["bytes"] == both["bytes"] and apart["figures"]["rows"] == one["figures"]["rows"]
    slow = result_of(generated, "--memory latency=1..9,order=any")
    free = result_of(generated, "--memory latency=1..9,order=any --check none")
    assert slow["tokens"] == free["tokens"] == both["tokens"]
    assert slow["cycles_per_token"] == free["cycles_per_token"] and slow["cycles"] > both["cycles"]


def test_heads_in_order_of_arrival_are_another_text(generated, monkeypatch):
    """Without a comparison; tiles finish in any order."""
    options = "--memory latency=1..9,order=any --check none"
    good = result_of(generated, options)
    monkeypatch.setattr(LadSystemAttention, "_outputs", LadAttention._outputs)
    assert result_of(generated, options)["tokens"] != good["tokens"]


def test_parameters_of_a_model(model):
    config = open_model(model)[0].config
    assert engine.parameters(config, 64) == LadSystemParameters(d=8, heads=4, kv_heads=2, tiles=2)
