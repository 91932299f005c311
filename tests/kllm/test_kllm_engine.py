"""A language model's products by the core's RTL: every bit, every cycle, and faults located."""

import dataclasses
import json
import re

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention
from golden.algorithms.kllm.activations import ActivationQuantizer
from golden.algorithms.kllm.attention import QuantizedAttention
from golden.algorithms.kllm.model import QuantizedLlama, core_product
from golden.algorithms.veda.voting import VotingAttention
from golden.lm.commands import open_model
from golden.lm.model import Llama
from golden.lm.weights import INPUTS
from hw.catalogue import find
from hw.emit.export import export
from hw.kllm.kllm_core import KllmCoreParameters
from hw.parameters import ParameterError
from sim import __main__ as cli
from sim.commands.engines.difference import Difference
from sim.commands.engines.kllm.kllm_core import engine, most_words
from sim.commands.engines.kllm.layer_products import STEPS, KllmLayer, LayerProducts
from sim.commands.engines.part import LayerRun
from sim.commands.engines.speak import Speaking
from sim.core.design import from_file, generate
from sim.core.memory import MemoryTiming
from sim.testbenches.kllm.layers import layers_of

BLOCK = KllmLayer.block

# As the harness' tests of every block compile it.
SMALL = KllmCoreParameters.preset("first")
PROMPT, NEXT = [7, 31], [90]
LAYERS = 3
RESULTS = 48 + 16 + 16 + 48 + 40 + 40 + 48
SHAPES = [(48, 48), (48, 16), (48, 16), (48, 48), (48, 40), (48, 40), (40, 48)]
WORDS = sum(SMALL.words(*shape) for shape in SHAPES)
"""Of a layer, each of four bits at 16 positions."""


class Products(Llama):
    """A model whose products are those of an engine's layers."""

    def __init__(self, model: QuantizedLlama, layers: list):
        super().__init__(dataclasses.replace(model.weights))
        self.layers, self.model = layers, model

    def normalise(self, x, gain):
        return self.model.normalise(x, gain)

    def attention_of(self, layer):
        return self.model.attention_of(layer)

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
        return made[-LAYERS - 1 : -1]

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
        # The prompt's two tokens are a batch, which the last of them has.
        assert cycles.shape == (3, len(STEPS)) and not cycles[0].any()
        assert (cycles[1:] > SMALL.latency / 4).all() and (cycles[1] > cycles[2]).all()
        assert layer.cycles == layer.predicted
        assert layer.bits > 3 * RESULTS * 16
        assert layer.bytes_moved() == {"weights_read": 2 * WORDS * 16 * 4 // 8}


@pytest.mark.campaign
@pytest.mark.parametrize("check", [True, False])
def test_batches_of_a_prompt(quantised, layers, check):
    """Six tokens: four, which the core takes at most, and two; they read each matrix twice."""
    layer = layers(check=check)[0]
    x = np.random.default_rng(2).standard_normal((6, 48)).astype(np.float32)
    model = quantised.products(0, quantised.weights.layers[0])
    for name in ("wq", "wk", "wv", "gate", "up"):
        np.testing.assert_array_equal(layer.multiply(name, x), model(name, x))
    assert [token for token, cycles in enumerate(layer.cycles) if any(cycles)] == [3, 5]
    assert layer.cycles == layer.predicted or not check
    words = sum(SMALL.words(*shape) for shape in SHAPES[:3] + SHAPES[4:6])
    assert layer.bytes_moved() == {"weights_read": 2 * words * 16 * 4 // 8}
    assert layer.runs(6) == 2 * len(STEPS)


def test_a_slow_memory_changes_the_cycles_alone(quantised, layers):
    made = layers(timing=MemoryTiming((2, 9), 3, reorder=True))
    found = Products(quantised, made).hidden(NEXT)
    np.testing.assert_array_equal(found, quantised.hidden(NEXT))
    for layer in made:
        # Three cycles a word of 16 positions by one column.
        assert layer.cycles[0] > layer.predicted[0]
        assert sum(layer.cycles[0]) > 3 * 3 * RESULTS
        assert layer.bytes_moved() == {"weights_read": WORDS * 16 * 4 // 8}


def test_what_the_rtl_gives_goes_on_where_nothing_is_compared(quantised, layers):
    checked, alone = layers(), layers(check=False)
    np.testing.assert_array_equal(speak(quantised, checked), speak(quantised, alone))
    assert [layer.cycles for layer in alone] == [layer.cycles for layer in checked]
    assert {layer.bits for layer in alone} == {0}


def test_runs_may_come_later(quantised, layers):
    waiting = []
    made = layers(submit=lambda layer: waiting.append)
    expected = speak(quantised, made)
    assert len(waiting) == LAYERS * 2 * len(STEPS) and made[0].bits == 0
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
    rows = made[1]._session.contents["memory"]
    rows[made[1]._address[name, 0, 0] + 1 + 4, 0] ^= 8  # second column, second word, first position
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
    layer._address["wo", 0, 0] = 1 << 12  # beyond the layer's memory
    with pytest.raises(Difference, match=r"layer 2, token 0: matrix wo: memory memory: request 0"):
        layer.multiply("wo", np.ones((1, 48), np.float32))


def test_slices_of_the_real_model(design, shipped_trace):
    """Real activations by real weights, 64 rows and columns of each matrix of the trace."""
    real, _ = layers_of(shipped_trace, 64, 64, 4, 4, 1)
    of_input = dict(zip(("attn", "wo", "ffn", "down"), real, strict=False))
    quantizers = {
        into: ActivationQuantizer(layer.codebook, 0, outliers=1) for into, layer in of_input.items()
    }
    matrices = {name: real[n % len(real)].weights for n, name in enumerate(INPUTS)}
    made = KllmLayer(LayerRun(design, 0), LayerProducts(matrices, quantizers))
    for name, into in INPUTS.items():
        x = of_input[into].x[:3].astype(np.float32)
        expected = core_product(x, quantizers[into], matrices[name])
        np.testing.assert_array_equal(made.multiply(name, x), expected)
    assert len(made.cycles) == 3 and made.cycles == made.predicted
    made.close()


@pytest.mark.campaign
def test_a_fault_in_the_rtl_is_located(quantised, tmp_path):
    """The clustering unit compares every sixteenth value the wrong way round.

    The message has the last token of the prompt's batch.
    """
    made = export(find(BLOCK), SMALL).verilog
    assert made.count("x_key_3 > key_7;") == 1
    path = tmp_path / "faulty.v"
    path.write_text(made.replace("x_key_3 > key_7;", "x_key_3 < key_7;"))
    layers = engine.layers(from_file(find(BLOCK), SMALL, path), quantised)
    with pytest.raises(Difference, match=r"layer 0, token 1: matrix w[qkv]: .*stream y"):
        speak(quantised, layers)


def test_text_by_the_command(call, tiny, quantised, folder, monkeypatch):
    monkeypatch.setenv("SENBAZURU_CACHE", str(folder))
    settings = " ".join(f"--set {n}={v}" for n, v in dataclasses.asdict(SMALL).items())
    command = f"generate --gguf {tiny} --attention none --linear {BLOCK} --prompt 'the a'"
    prompt = open_model(tiny)[1].encode("the a")
    for options in ("", "--check none"):
        status, out, err = call(cli.main, f"{command} --tokens 2 --json {settings} {options}")
        assert (status, err) == (0, "")
        result = json.loads(out)
        dense = [DenseAttention() for _ in range(LAYERS)]
        assert result["tokens"] == generate_tokens(quantised, prompt, 2, dense)
        assert result["prompt_tokens"] == 2 and len(result["cycles_per_token"]) == 3
        assert (result["bits_compared"] > 0) == (not options)
        head = 2 * sum(SMALL.words(48, width) for width in widths_of(open_model(tiny)[0]))
        assert result["bytes"]["weights_read"] == (2 * LAYERS * WORDS + head) * 16 * 4 // 8


def test_text_with_its_own_attention(call, tiny, quantised, folder, monkeypatch):
    monkeypatch.setenv("SENBAZURU_CACHE", str(folder))
    settings = " ".join(f"--set {n}={v}" for n, v in dataclasses.asdict(SMALL).items())
    command = f"generate --gguf {tiny} --attention {BLOCK} --linear {BLOCK} --prompt 'the a'"
    prompt = open_model(tiny)[1].encode("the a")
    attentions = [
        QuantizedAttention(own, bit_exact=True, longest=SMALL.scores) for own in quantised.codebooks
    ]
    expected = generate_tokens(quantised, prompt, 3, attentions)
    for options in ("", "--check none"):
        status, out, err = call(cli.main, f"{command} --tokens 3 --json {settings} {options}")
        assert (status, err) == (0, "")
        result = json.loads(out)
        assert result["tokens"] == expected
        assert (result["bits_compared"] > 0) == (not options)
        assert result["bytes"]["kv_written"] == 0  # the host writes
        assert result["bytes"]["kv_read"] > 0 and result["rows_kept"] == 4


@pytest.mark.campaign
def test_text_by_lanes_that_multiply(call, tiny, folder, monkeypatch):
    """Products by fixed-point centroids, every bit compared."""
    monkeypatch.setenv("SENBAZURU_CACHE", str(folder))
    own = dataclasses.asdict(dataclasses.replace(SMALL, centroid_bits=12))
    settings = " ".join(f"--set {n}={v}" for n, v in own.items())
    command = f"generate --gguf {tiny} --attention none --linear {BLOCK} --prompt 'the a'"
    status, out, err = call(cli.main, f"{command} --tokens 2 --json {settings}")
    assert (status, err) == (0, "") and json.loads(out)["bits_compared"] > 0


def test_attention_is_the_quantised_models(design, quantised):
    """What the core is given and compared with gives the outputs of the model of attention."""
    config = quantised.config
    rng = np.random.default_rng(2)
    shapes = ((config.heads, config.d), (config.kv_heads, config.d), (config.kv_heads, config.d))
    layer = engine.attentions(design, config, 16, quantised=quantised)[1]
    codebooks = quantised.codebooks[1]
    assert codebooks.query_outliers
    expected = QuantizedAttention(codebooks, bit_exact=True, longest=SMALL.scores)
    for _ in range(4):
        rows = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        np.testing.assert_array_equal(layer.step(*rows), expected.step(*rows))
    layer.close()


def test_a_wrong_key_is_located(design, quantised):
    """A bit of a stored key flips after two tokens."""
    config = quantised.config
    layer = engine.attentions(design, config, 16, quantised=quantised)[1]
    rng = np.random.default_rng(1)
    shapes = ((config.heads, config.d), (config.kv_heads, config.d), (config.kv_heads, config.d))
    for _ in range(2):
        layer.step(*(rng.standard_normal(shape).astype(np.float32) for shape in shapes))
    write = layer._write

    def broken(contents):
        write(contents)
        layer._session.contents["memory"][2, 0] ^= 8  # behind the scales: the first key

    layer._write = broken
    with pytest.raises(Difference, match=r"layer 1, token 2: .*stream (y|outliers)"):
        layer.step(*(rng.standard_normal(shape).astype(np.float32) for shape in shapes))
    layer.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vectors": 2}, "vectors must be at least 3 for attention, not 2"),
        ({"outliers": 2}, "outliers must be at least 3 for attention, not 2"),
        ({"scores": 8}, "scores must be at least 12, the prompt's and those to make, not 8"),
        ({"n": 11}, "n must be at least 12, the prompt's and those to make, not 11"),
        ({"activation_bits": 3}, "activation_bits must be 4 for attention, not 3"),
        ({"centroid_bits": 8}, "centroid_bits must be 0 for attention, whose integers are counted"),
    ],
)
def test_refusals_of_attention(tiny, settings, message):
    config = open_model(tiny)[0].config
    with pytest.raises(ParameterError, match=f"^{message}"):
        engine.require_attention(dataclasses.replace(SMALL, **settings), config, 12, 12)


def test_attention_on_fewer_rows_names_the_option_to_change(tiny):
    config = open_model(tiny)[0].config
    with pytest.raises(ParameterError, match="^capacity must be at least 60, the prompt's and"):
        engine.require_attention(engine.parameters(config, 16), config, 16, 60)
    engine.require_attention(engine.parameters(config, 48), config, 48, 48)


def widths_of(model) -> list[int]:
    """Columns of the products with the output matrix."""
    vocab, n = model.config.vocab, SMALL.n
    return [min(n, vocab - start) for start in range(0, vocab, n)]


def test_the_core_made_for_a_model_fits_it(tiny):
    config = open_model(tiny)[0].config
    p = engine.parameters(config, 64)
    assert (p.k, p.n, p.outliers, p.scores, p.vectors) == (48, 64, 3, 64, 4)
    engine.require_fit(p, config, 64)
    engine.require_fit(SMALL, config)
    large = dataclasses.replace(config, dim=576, heads=9, kv_heads=3, d=64, ffn=1536)
    large = dataclasses.replace(large, vocab=49152)
    p = engine.parameters(large)
    assert (p.k, p.n, p.outliers) == (576, 1536, 24)
    engine.require_fit(p, large)
    # Words of 144 positions and 4 columns, and of scales of 16 sets: the output matrix.
    assert most_words(p, large, 0) == 32 * (384 * 4 + 24)
    assert 1 << p.address_width - 1 < most_words(p, large, 0) <= 1 << p.address_width


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 32}, "k must be at least 48, the model's vectors that are normalised, not 32"),
        ({"address_width": 9}, "address_width must be at least 10 for 845 words of memory, not 9"),
    ],
)
def test_refusals(tiny, settings, message):
    config = open_model(tiny)[0].config
    with pytest.raises(ParameterError, match=f"^{message}"):
        engine.require_fit(dataclasses.replace(SMALL, **settings), config)


@pytest.mark.model
@pytest.mark.campaign
def test_a_token_of_the_real_model(smollm2):
    """All seven matrices of all 30 layers, 106 million weights, and what is done to vectors."""
    model, tokenizer, about = open_model(smollm2)
    p = engine.parameters(model.config)
    quantised = engine.quantise(model, tokenizer, about, p)
    layers = engine.layers(generate(find(BLOCK), p), quantised)
    tokens = tokenizer.encode("A")[:1]
    found = Speaking(quantised, quantised, layers).hidden(tokens, quantised.dense())
    np.testing.assert_array_equal(found, quantised.hidden(tokens))
    layers = layers[:-1]  # the last one is of the output matrix
    results = 576 + 2 * 192 + 576 + 2 * 1536 + 576
    assert sum(layer.bits for layer in layers) > 30 * results * 16
    cycles = np.array([layer.cycles[0] for layer in layers])
    print("cycles of each step, all layers:", cycles.sum(axis=0), "in all:", cycles.sum())
    # The last product's columns are as long as the core's, so that its cycle model is exact.
    predicted = np.array([layer.predicted[0] for layer in layers])
    assert (cycles[:, 3:] == predicted[:, 3:]).all() and (cycles >= predicted).all()


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
