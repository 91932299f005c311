"""A language model's sums, gated products and positions by KLLM's core, beside its products."""

import dataclasses
import json

import numpy as np
import pytest

from golden.algorithms.kllm.calibration import calibration_samples
from golden.algorithms.kllm.model import QuantizedLlama
from golden.algorithms.vectors import combined, turned, turns_of_layer
from golden.attention.rotary_encoding import rotary_encoding
from golden.attention.vector_unit import vector_unit
from golden.lm.commands import open_model
from golden.lm.model import ACTIVATIONS, Llama, rope
from hw.catalogue import find
from hw.kllm.kllm_core import KllmCoreParameters
from hw.parameters import ParameterError
from sim import __main__ as cli
from sim.commands.engines.difference import Difference
from sim.commands.engines.kllm.kllm_core import SHARE, engine
from sim.commands.engines.kllm.layer_products import STEPS
from sim.commands.engines.layer_vectors import LayerVectors
from sim.commands.engines.speak import Speaking
from sim.core.design import generate

SMALL = dataclasses.replace(KllmCoreParameters.preset("first"), vector_lanes=3, rotary_pairs=8)
PROMPT, NEXT = [7, 31], [90]
LAYERS = 3
RNG = np.random.default_rng


@pytest.fixture(scope="module")
def config(tiny):
    return open_model(tiny)[0].config


def test_operations_are_close_to_the_models(tiny):
    """Sums, SiLU up and positions in FP16, against float32."""
    model, _, _ = open_model(tiny)
    c = model.config
    rng = RNG(1)
    a, b = rng.standard_normal((2, 5, c.dim)).astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(combined("sum", a, b), a + b, rtol=2**-11, atol=2**-25)
    for name, activate in ACTIVATIONS.items():
        np.testing.assert_allclose(combined(name, a, b), activate(a) * b, rtol=2**-10, atol=1e-6)
    x = rng.standard_normal((c.heads, 5, c.d)).astype(np.float16).astype(np.float32)
    wanted = rope(x, model.angles(np.arange(3, 8))[0])
    found = turned(x, np.arange(3, 8), turns_of_layer(model, 0))
    np.testing.assert_allclose(found, wanted, atol=8e-3)
    assert np.abs(found - wanted).max() > 0 and np.abs(x - wanted).max() > 0.5
    np.testing.assert_array_equal(found[..., c.rope_dims :], x[..., c.rope_dims :])


def test_steps_hold_what_the_model_says(config):
    """A step a token, in the tokens' order; the table of turns with the first alone."""
    steps = []
    turns = RNG(2).integers(0, 1 << 32, config.rope_dims // 2)
    p = dataclasses.replace(SMALL, rotary_pairs=len(turns))
    vectors = LayerVectors(p.vector_path, turns, lambda *step: steps.append(step), RNG(3))
    a, b = RNG(4).standard_normal((2, 2, 10)).astype(np.float32)
    np.testing.assert_array_equal(vectors.combine("silu", a, b), combined("silu", a, b))
    x = RNG(5).standard_normal((3, 2, config.d)).astype(np.float32)
    for positions in (np.array([0, 1]), np.array([2, 9])):
        np.testing.assert_array_equal(vectors.turn(positions, x), turned(x, positions, turns))
    assert [token for token, _, _ in steps] == [0, 1] * 3
    assert ["turns" in stimulus.inputs for _, stimulus, _ in steps] == [False] * 2 + [True] + [
        False
    ] * 3
    assert [set(stimulus.outputs) for _, stimulus, _ in steps[1:3]] == [{"elements"}, {"turned"}]


def test_refusals(config):
    for settings, message in (
        ({"rotary_pairs": config.rope_dims // 2 - 1}, "rotary_pairs must be 0 or at least"),
    ):
        p = dataclasses.replace(engine.parameters(config, 16), **settings)
        with pytest.raises(ParameterError, match=f"^{message}"):
            engine.require_fit(p, config, 16, 16)
    with pytest.raises(
        ParameterError, match=r"at most the positions that the core encodes, 8192, not 9"
    ):
        engine.require_fit(engine.parameters(config, 16), config, 16, 9000)
    without = dataclasses.replace(engine.parameters(config, 16), rotary_pairs=0)
    engine.require_fit(without, config, 16, 9000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def quantised(tiny, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SENBAZURU_CACHE", str(folder))
        model, tokenizer, about = open_model(tiny)
        return engine.quantise(model, tokenizer, about, SMALL)


@pytest.fixture(scope="module")
def design():
    return generate(find("kllm.kllm_core"), SMALL)


@pytest.mark.campaign
@pytest.mark.parametrize("check", [True, False])
def test_a_model_on_the_core(quantised, design, check):
    """All but embedding and attention's sums: each bit and cycle, and what the RTL gives."""
    layers = engine.layers(design, quantised, check=check)
    speaking = Speaking(quantised, quantised, layers)
    attentions, expected = quantised.dense(), quantised.dense()
    for tokens, start in ((PROMPT, 0), (NEXT, 2)):
        found = speaking.hidden(tokens, attentions, start=start)
        wanted = quantised.hidden(tokens, expected, start=start)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(found, found.astype(np.float16))
    for layer in layers[:-1]:
        assert np.array(layer.cycles).shape == (3, len(STEPS) + 1)
        assert layer.cycles == layer.predicted or not check
        assert all(token[-1] > 0 for token in layer.cycles)
        assert (layer.bits > 0) == check
    for layer in layers:
        layer.close()


def with_a_wrong_bit(model):
    """The model, whose first result is wrong in its last bit."""

    def broken(*operands):
        first, second = model(*operands)
        bits = first.view(np.uint16).copy()
        bits.flat[0] ^= 1
        return bits.view(np.float16), second

    return broken


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("path", "model", "where"),
    [
        ("attention.vector_unit.vector_unit", vector_unit, "sum of two vectors: .*y"),
        ("attention.rotary_encoding.rotary_encoding", rotary_encoding, "positions: .*a"),
    ],
    ids=["elements", "positions"],
)
def test_a_wrong_result_is_located(quantised, design, path, model, where, monkeypatch):
    """What the RTL is compared with is wrong in one bit: the run ends there."""
    layers = engine.layers(design, quantised)
    monkeypatch.setattr(f"sim.testbenches.{path}", with_a_wrong_bit(model))
    with pytest.raises(Difference, match=rf"layer 0, token 0: {where}\[0\]"):
        Speaking(quantised, quantised, layers).hidden(PROMPT)
    for layer in layers:
        layer.close()


@pytest.mark.campaign
def test_text_with_all_on_the_core(call, tiny, quantised, folder, monkeypatch):
    """Attention too: compared and alone give the same text."""
    monkeypatch.setenv("SENBAZURU_CACHE", str(folder))
    settings = " ".join(f"--set {n}={v}" for n, v in dataclasses.asdict(SMALL).items())
    block = "kllm.kllm_core"
    command = f"generate --gguf {tiny} --attention {block} --linear {block} --prompt 'the a'"
    texts = []
    for options in ("", "--check none"):
        status, out, err = call(cli.main, f"{command} --tokens 3 --json {settings} {options}")
        assert (status, err) == (0, "")
        texts.append(json.loads(out))
    assert texts[0]["tokens"] == texts[1]["tokens"]
    assert texts[0]["bits_compared"] > 0 and texts[1]["bits_compared"] == 0
    assert texts[0]["cycles_per_token"] == texts[1]["cycles_per_token"]


@pytest.mark.campaign
@pytest.mark.model
def test_a_layer_of_smollm2(smollm2):
    """All of a layer but embedding, on the core that `sim generate` makes for the whole model."""
    model, tokenizer, _ = open_model(smollm2)
    w = model.weights
    config = dataclasses.replace(w.config, layers=1)
    model = Llama(dataclasses.replace(w, config=config, layers=[w.layers[0]]))
    p = engine.parameters(config, 8)
    samples = calibration_samples(tokenizer, 4)
    quantised = QuantizedLlama(
        *(model, samples),
        **{"fit": "paper", "outlier_share": SHARE, "norms": "fused", "attention": "quantised"},
        rows=p.k,
        bit_exact=True,
    )
    quantised.half_vectors = quantised.half_positions = True
    design = generate(find("kllm.kllm_core"), p)
    layers = engine.layers(design, quantised)
    attentions = engine.attentions(design, config, 8, quantised=quantised)
    tokens = tokenizer.encode("A thousand paper cranes")
    found = Speaking(quantised, quantised, layers).hidden(tokens, attentions)
    np.testing.assert_array_equal(found, quantised.hidden(tokens))
    cycles = np.array(layers[0].cycles)
    assert layers[0].cycles == layers[0].predicted and len(cycles) == len(tokens)
    # Two sums, SiLU up, heads of queries and keys; the table of turns with the first token.
    unit, rotary = p.vector_path.vector_unit, p.vector_path.rotary_encoding
    vectors = 2 * unit.cycles([config.dim]) + unit.cycles([config.ffn])
    heads = [
        rotary.cycles([config.d // 2] * count) - rotary.rows
        for count in (config.heads, config.kv_heads)
    ]
    assert vectors + sum(heads) == 468
    assert cycles[:, -1].tolist() == [468 + rotary.rows, *[468] * (len(tokens) - 1)]
    for part in (*layers, *attentions):
        part.close()
