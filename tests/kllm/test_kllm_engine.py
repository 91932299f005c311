"""A language model's products by the core's RTL: every bit, every cycle, and faults located."""

import dataclasses
import json
import re

import numpy as np
import pytest

from golden.algorithms.kllm.model import INPUTS, ActivationQuantizer, QuantizedLlama, core_product
from golden.algorithms.veda.voting import VotingAttention
from golden.lm.commands import open_model
from golden.lm.model import Llama
from hw.catalogue import find
from hw.export import export
from hw.kllm.kllm_core import KllmCoreParameters
from hw.parameters import ParameterError
from sim import __main__ as cli
from sim.commands.engines.difference import Difference
from sim.commands.engines.kllm.kllm_core import BLOCK, STEPS, KllmLayer, engine
from sim.core.design import from_file, generate
from sim.core.memory import MemoryTiming
from sim.testbenches.kllm.layers import layers_of

# As the harness' tests of every block compile it.
SMALL = KllmCoreParameters.preset("first")
PROMPT, NEXT = [7, 31], [90]
LAYERS = 3
RESULTS = 48 + 16 + 16 + 48 + 40 + 40 + 48


class Products(Llama):
    """A model whose products are those of an engine's layers."""

    def __init__(self, model: QuantizedLlama, layers: list):
        super().__init__(dataclasses.replace(model.weights))
        self.layers = layers

    def products(self, index, layer):
        return self.layers[index].multiply


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
    return generate(find(BLOCK), SMALL)


@pytest.fixture
def layers(design, quantised):
    made = []

    def make(**options):
        made.extend(engine.layers(design, quantised, **options))
        return made[-LAYERS:]

    yield make
    for layer in made:
        layer.close()


def generate_tokens(quantised, prompt, count, attentions=None):
    """By the bit-exact model, each product by its own."""
    attentions = attentions or quantised.dense()
    made, new, start = [], prompt, 0
    while len(made) < count:
        hidden = quantised.hidden(new, attentions, start=start)
        start, new = start + len(new), [int(quantised.logits(hidden[-1:]).argmax())]
        made += new
    return made


def speak(quantised, layers):
    """Hidden states of a prompt and of a token after it."""
    model = Products(quantised, layers)
    attentions = model.dense()
    first = model.hidden(PROMPT, attentions)
    return np.concatenate([first, model.hidden(NEXT, attentions, start=len(PROMPT))])


def test_every_matrix_through_the_rtl(quantised, layers):
    made = layers()
    found = speak(quantised, made)
    attentions = quantised.dense()
    expected = [
        quantised.hidden(PROMPT, attentions),
        quantised.hidden(NEXT, attentions, start=len(PROMPT)),
    ]
    np.testing.assert_array_equal(found, np.concatenate(expected))
    for layer in made:
        cycles = np.array(layer.cycles)
        assert cycles.shape == (3, len(STEPS)) and (cycles > SMALL.latency / 4).all()
        assert layer.cycles == layer.predicted
        assert layer.bits > 3 * RESULTS * 16
        # Each word has four bits at each of its 16 positions, and a scale.
        words = 3 * RESULTS  # columns of 48 or 40 positions
        assert layer.bytes_moved() == {"weights_read": 3 * words * (16 * 4 + 16) // 8}


def test_a_slow_memory_changes_the_cycles_alone(quantised, layers):
    made = layers(timing=MemoryTiming((2, 9), 3, reorder=True))
    found = Products(quantised, made).hidden(NEXT)
    np.testing.assert_array_equal(found, quantised.hidden(NEXT))
    for layer in made:
        # Three cycles a word of 16 positions by one column.
        assert layer.cycles[0] > layer.predicted[0]
        assert sum(layer.cycles[0]) > 3 * 3 * RESULTS
        assert layer.bytes_moved() == {"weights_read": 3 * RESULTS * 10}


def test_what_the_rtl_gives_goes_on_where_nothing_is_compared(quantised, layers):
    checked, alone = layers(), layers(check=False)
    np.testing.assert_array_equal(speak(quantised, checked), speak(quantised, alone))
    assert [layer.cycles for layer in alone] == [layer.cycles for layer in checked]
    assert {layer.bits for layer in alone} == {0}


def test_runs_may_come_later(quantised, layers):
    waiting = []
    made = layers(submit=lambda layer: waiting.append)
    expected = speak(quantised, made)
    assert len(waiting) == LAYERS * 3 * len(STEPS) and made[0].bits == 0
    for run in waiting:
        run()
    at_once = layers()
    np.testing.assert_array_equal(speak(quantised, at_once), expected)
    assert [layer.cycles for layer in made] == [layer.cycles for layer in at_once]
    assert [layer.bits for layer in made] == [layer.bits for layer in at_once]


def test_inputs_need_not_be_the_same(quantised, layers):
    """Each matrix has its own input's products, whatever was computed before."""
    layer = layers()[0]
    x = np.random.default_rng(1).standard_normal((3, 1, 48)).astype(np.float32)
    model = quantised.products(0, quantised.weights.layers[0])
    for name, number in (("wq", 0), ("wk", 1), ("wk", 0), ("wv", 0), ("wq", 2), ("up", 2)):
        np.testing.assert_array_equal(layer.multiply(name, x[number]), model(name, x[number]))


@pytest.mark.parametrize("name", ["wk", "wo", "up", "down"])
def test_a_wrong_weight_is_located(quantised, layers, name):
    """A bit of the memory of layer 1 flips after the first two tokens."""
    made = layers()
    model = Products(quantised, made)
    attentions = model.dense()
    model.hidden(PROMPT, attentions)
    rows = made[1]._session.contents["weights"]
    rows[made[1]._address[name] + 4, 0] ^= 8  # second column, second word, first position
    with pytest.raises(Difference) as raised:
        model.hidden(NEXT, attentions, start=2)
    error = raised.value
    assert (error.block, error.layer, error.token) == (BLOCK, 1, 2)
    assert re.match(
        rf"{BLOCK}, layer 1, token 2: matrix {name}: transaction \d, stream y, beat \d+, field "
        r"y\[0\], cycle \d+: expected \d+, got \d+$",
        str(error),
    )


def test_a_hang_is_located(quantised, layers):
    layer = layers()[2]
    layer._address["wo"] = 1 << 12  # beyond the layer's memory
    with pytest.raises(Difference, match=r"layer 2, token 0: matrix wo: memory weights: request"):
        layer.multiply("wo", np.ones((1, 48), np.float32))


def test_slices_of_the_real_model(design, shipped_trace):
    """Real activations by real weights, 64 rows and columns of each matrix of the trace."""
    real, _ = layers_of(shipped_trace, 64, 64, 4, 4, 1)
    of_input = dict(zip(("attn", "wo", "ffn", "down"), real, strict=False))
    quantizers = {
        into: ActivationQuantizer(layer.codebook, 0, outliers=1) for into, layer in of_input.items()
    }
    matrices = {name: real[n % len(real)].weights for n, name in enumerate(INPUTS)}
    made = KllmLayer(design, 0, matrices, quantizers)
    for name, into in INPUTS.items():
        x = of_input[into].x[:3].astype(np.float32)
        expected = core_product(x, quantizers[into], matrices[name])
        np.testing.assert_array_equal(made.multiply(name, x), expected)
    assert len(made.cycles) == 3 and made.cycles == made.predicted
    made.close()


@pytest.mark.campaign
def test_a_fault_in_the_rtl_is_located(quantised, tmp_path):
    """The clustering unit compares every sixteenth value the wrong way round."""
    made = export(find(BLOCK), SMALL).verilog
    assert made.count("x_key_3 > key_7;") == 1
    path = tmp_path / "faulty.v"
    path.write_text(made.replace("x_key_3 > key_7;", "x_key_3 < key_7;"))
    layers = engine.layers(from_file(find(BLOCK), SMALL, path), quantised)
    with pytest.raises(Difference, match=r"layer 0, token 0: matrix w[qkv]: .*stream y"):
        speak(quantised, layers)


def test_text_by_the_command(call, tiny, quantised, folder, monkeypatch):
    monkeypatch.setenv("SENBAZURU_CACHE", str(folder))
    names = ("k", "n", "lanes", "counters", "macs", "outliers", "entries", "address_width")
    settings = " ".join(f"--set {name}={getattr(SMALL, name)}" for name in names)
    command = f"generate --gguf {tiny} --attention none --linear {BLOCK} --prompt 'the a'"
    prompt = open_model(tiny)[1].encode("the a")
    for options in ("", "--check none"):
        status, out, err = call(cli.main, f"{command} --tokens 2 --json {settings} {options}")
        assert (status, err) == (0, "")
        result = json.loads(out)
        assert result["tokens"] == generate_tokens(quantised, prompt, 2)
        assert result["prompt_tokens"] == 2 and len(result["cycles_per_token"]) == 3
        assert (result["bits_compared"] > 0) == (not options)
        assert result["bytes"]["weights_read"] == 3 * LAYERS * 3 * RESULTS * 10


def test_the_core_made_for_a_model_fits_it(tiny):
    config = open_model(tiny)[0].config
    p = engine.parameters(config, 64)
    assert (p.k, p.n, p.outliers) == (48, 48, 1)
    engine.require_fit(p, config, 64)
    engine.require_fit(SMALL, config)
    large = dataclasses.replace(config, dim=576, heads=9, kv_heads=3, d=64, ffn=1536)
    p = engine.parameters(large)
    assert (p.k, p.n, p.outliers) == (1536, 1536, 8)
    engine.require_fit(p, large)
    # Words of 144 positions and 4 columns.
    words = 4 * (144 + 48 + 48 + 144 + 384 + 384) + 11 * 144
    assert 1 << p.address_width - 1 < words <= 1 << p.address_width


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 32}, "k must be at least 48, the model's longest input, not 32"),
        ({"n": 47}, "n must be at least 48, the model's widest matrix, not 47"),
        (
            {"outliers": 20},
            "outliers must be fewer than half of the model's shortest input, 40, not 20",
        ),
        ({"address_width": 9}, "address_width must be at least 10 for the 768 words of a layer"),
    ],
)
def test_refusals(tiny, settings, message):
    config = open_model(tiny)[0].config
    with pytest.raises(ParameterError, match=f"^{message}"):
        engine.require_fit(dataclasses.replace(SMALL, **settings), config)


@pytest.mark.model
@pytest.mark.campaign
def test_a_token_of_the_real_model(smollm2):
    """All seven matrices of all 30 layers, 106 million weights."""
    model, tokenizer, about = open_model(smollm2)
    p = engine.parameters(model.config)
    quantised = engine.quantise(model, tokenizer, about, p)
    layers = engine.layers(generate(find(BLOCK), p), quantised)
    tokens = tokenizer.encode("A")[:1]
    found = Products(quantised, layers).hidden(tokens)
    np.testing.assert_array_equal(found, quantised.hidden(tokens))
    results = 576 + 2 * 192 + 576 + 2 * 1536 + 576
    assert sum(layer.bits for layer in layers) > 30 * results * 16
    cycles = np.array([layer.cycles[0] for layer in layers])
    print("cycles of each step, all layers:", cycles.sum(axis=0), "in all:", cycles.sum())
    # The last step's columns are as long as the core's, so that its cycle model is exact.
    predicted = np.array([layer.predicted[0] for layer in layers])
    assert (cycles[:, 3] == predicted[:, 3]).all() and (cycles >= predicted).all()


@pytest.mark.model
@pytest.mark.campaign
def test_a_token_with_its_attention_on_veda(call, smollm2):
    """Products and attention of all layers by RTL; the next token is the bit-exact model's."""
    status, out, _ = call(cli.main, f"generate --linear {BLOCK} --prompt A --tokens 1 --json")
    result = json.loads(out)
    assert status == 0 and result["mismatches"] == 0
    model, tokenizer, about = open_model(smollm2)
    quantised = engine.quantise(model, tokenizer, about, engine.parameters(model.config))
    attentions = [VotingAttention(64, reserved=4, bit_exact=True) for _ in range(30)]
    prompt = tokenizer.encode("A")
    assert result["tokens"] == generate_tokens(quantised, prompt, 1, attentions)
    assert len(result["cycles_per_token"]) == len(prompt)
    assert {*result["bytes"]} == {"kv_read", "kv_written", "weights_read"}
    print(f"{result['cycles']} cycles, {result['cpu_s']} CPU seconds")
