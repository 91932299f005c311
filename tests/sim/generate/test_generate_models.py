"""Other Llama-family models by `sim generate`: head sizes, groups, outputs, positions, chats."""

import dataclasses
import json

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention
from golden.algorithms.veda.voting import VotingAttention
from golden.lm.commands import open_model
from golden.lm.model import generate as generate_in_numpy
from hw.kllm.kllm_core import KllmCoreParameters
from sim.commands.engines.kllm import kllm_core
from sim.commands.engines.veda import veda_core
from tests.support.lm.tiny_llama import SIZES, TOKENS, random_tensors, write_gguf

ROWS = 6
# The smallest presets, which other tests compile too: rows of 8 elements, 4 heads, 2 kv heads.
SETTINGS = "--set heads=4 --set kv_heads=2 --set rows=2 --set columns=2 --set arrays=2"
SETTINGS += " --set capacity=32 --set depth=16 --set position_bits=8 --set count_bits=4"
SETTINGS += " --set contexts=2"  # the layers
SMALL_PRODUCTS = KllmCoreParameters.preset("first")
PRODUCTS = "--attention none --linear kllm.kllm_core "
PRODUCTS += " ".join(f"--set {name}={v}" for name, v in dataclasses.asdict(SMALL_PRODUCTS).items())


def sizes_of(d: int, heads: int, kv_heads: int, **more) -> dict:
    sizes = {"layers": 2, "d": d, "heads": heads, "kv_heads": kv_heads, "dim": 24} | more
    return SIZES | sizes | {"key_length": sizes["d"]}


# Head size, heads, kv heads; groups of 1, 2, 3 and 4 heads.
FITTING = {
    "head size 4, no groups": sizes_of(4, 2, 2),
    "head size 4, four in a group": sizes_of(4, 4, 1),
    "head size 6, groups of two": sizes_of(6, 4, 2),
    "head size 2, three in a group": sizes_of(2, 3, 1),
    "head size 8, one head": sizes_of(8, 1, 1),
}
LARGE = {
    "d=16": sizes_of(16, 2, 2),
    "d=12": sizes_of(12, 4, 2),
    "six heads, groups of three": sizes_of(4, 6, 2),
    "six heads, groups of two": sizes_of(4, 6, 3),
    "three heads, no groups": sizes_of(4, 3, 3),
}
MESSAGES = {
    "d=16": "rows times columns times arrays must be at least the head size, 16, not 8",
    "d=12": "rows times columns times arrays must be at least the head size, 12, not 8",
    "six heads, groups of three": "heads must be at least 6, not 4",
    "six heads, groups of two": "heads must be at least 6, not 4",
    "three heads, no groups": "kv_heads must be at least 3, not 2",
}


@pytest.fixture
def model_of(tmp_path):
    """Writes a tiny model's file."""

    def write(sizes: dict, tensors: dict | None = None, arch: str = "llama", **options):
        own = random_tensors(sizes=sizes, arch=arch) | (tensors or {})
        return write_gguf(tmp_path / "model.gguf", own, sizes=sizes, arch=arch, **options)

    return write


@pytest.fixture
def generated(run):
    def command(model, options: str = SETTINGS, text: str = "--prompt 'the a the'"):
        line = f"generate --gguf {model} {text} --tokens 8 --capacity {ROWS} --json"
        return run(f"{line} {options}")

    return command


def expected_tokens(model, prompt: list[int], count: int, rows: int = 32) -> list[int]:
    """By the bit-exact model of the core's attention in the NumPy model."""
    llama = open_model(model)[0]
    options = {"reserved": 4, "protect_reserved": True, "bit_exact": True, "rows": rows}
    attentions = [VotingAttention(ROWS, **options) for _ in range(llama.config.layers)]
    return generate_in_numpy(llama, prompt, count, attentions)


def check(model, result: dict) -> None:
    assert result["mismatches"] == 0 and result["bits_compared"] > 0
    assert result["tokens"] == expected_tokens(model, [257, 259, 258], 8)


@pytest.mark.parametrize("sizes", FITTING.values(), ids=FITTING)
def test_models_that_fit_the_small_core(generated, model_of, sizes):
    model = model_of(sizes)
    status, out, err = generated(model)
    assert (status, err) == (0, "")
    result = json.loads(out)
    check(model, result)
    assert all(len(evicted) == 10 - ROWS for evicted in result["evicted"])
    # A row has eight elements, whatever the head size.
    assert result["bytes"]["kv_written"] == 2 * 10 * sizes["kv_heads"] * 2 * 16


@pytest.mark.parametrize(
    ("arch", "more"), [("qwen2", {"pre": "qwen2"}), ("gemma3", {}), ("llama", {})]
)
def test_other_architectures(generated, model_of, arch, more):
    """Biases, norms of products and the activation are the host's."""
    sizes = FITTING["head size 6, groups of two"] | {"sliding_window": 11}
    model = model_of(sizes, arch=arch, **more)
    status, out, err = generated(model)
    assert (status, err) == (0, "")
    check(model, json.loads(out))


def test_windows_shorter_than_the_text_are_refused(generated, model_of):
    """The blocks' attention sees all tokens, and so do layers whose window is long enough."""
    sizes = FITTING["head size 6, groups of two"] | {"sliding_window": 10}
    status, out, err = generated(model_of(sizes, arch="gemma3"))
    sentence = "prompt and tokens must be at most 10, which all of the model's layers see, not 11"
    assert (status, out, err) == (2, "", f"error: {sentence}\n")


@pytest.mark.parametrize("name", LARGE)
def test_models_that_do_not(generated, model_of, name):
    status, out, err = generated(model_of(LARGE[name]))
    assert (status, out, err) == (2, "", f"error: {MESSAGES[name]}\n")


@pytest.mark.parametrize(
    ("name", "lanes"), [(name, sizes["d"]) for name, sizes in (FITTING | LARGE).items()]
)
def test_the_core_made_for_a_model_fits_it(model_of, name, lanes):
    sizes = (FITTING | LARGE)[name]
    config = open_model(model_of(sizes))[0].config
    p = veda_core.engine.parameters(config, ROWS)
    veda_core.engine.require_fit(p, config, ROWS, config.context)
    assert (p.heads, p.kv_heads) == (sizes["heads"], sizes["kv_heads"])
    assert p.array.lanes / 2 < max(lanes, 4) <= p.array.lanes
    products = kllm_core.engine.parameters(config, ROWS)
    kllm_core.engine.require_fit(products, config, ROWS)


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["d=16", "d=12"])
def test_larger_heads_in_a_larger_core(generated, model_of, name):
    model = model_of(LARGE[name])
    status, out, err = generated(model, f"{SETTINGS} --set arrays=4")
    assert (status, err) == (0, "")
    check(model, json.loads(out))


def test_an_output_matrix_of_its_own_and_stretched_positions(generated, model_of):
    sizes = FITTING["head size 6, groups of two"]
    rng = np.random.default_rng(1)
    output = rng.normal(size=(len(TOKENS), sizes["dim"])).astype("f4")
    factors = np.array([1, 2.5, 8], "f4")
    tokens = {}
    for name, tensors in (
        ("plain", {}),
        ("output", {"output.weight": output}),
        ("factors", {"rope_freqs.weight": factors}),
    ):
        model = model_of(sizes, tensors)
        status, out, err = generated(model)
        assert (status, err) == (0, "")
        result = json.loads(out)
        check(model, result)
        tokens[name] = tuple(result["tokens"])
    assert len({*tokens.values()}) == 3


def test_positions_scaled_in_another_way_are_refused(generated, model_of):
    def extra(writer):
        writer.add_string("llama.rope.scaling.type", "yarn")

    model = model_of(FITTING["head size 8, one head"], extra=extra)
    status, out, err = generated(model)
    assert (status, out) == (2, "")
    assert err == f"error: model {model}: RoPE scaling 'yarn' is not supported\n"


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_products_of_odd_sizes(generated, model_of, monkeypatch, tmp_path, arch):
    """Vectors of 12, 24 and 150 values, matrices of 6 to 150 columns, in a core for 64.

    The rows of one matrix are in three parts, the columns of others in three pieces.
    """
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "cache"))
    model = model_of(sizes_of(6, 2, 1, ffn=150), arch=arch)
    status, out, err = generated(model, f"{PRODUCTS} --tokens 3")
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert result["mismatches"] == 0 and result["bits_compared"] > 0
    llama, tokenizer, about = open_model(model)
    quantised = kllm_core.engine.quantise(llama, tokenizer, about, SMALL_PRODUCTS)
    tokens, new, start = [], [257, 259, 258], 0
    attentions = [DenseAttention() for _ in range(llama.config.layers)]
    while len(tokens) < 3:
        hidden = quantised.hidden(new, attentions, start=start)
        start, new = start + len(new), [int(quantised.logits(hidden[-1:]).argmax())]
        tokens += new
    assert result["tokens"] == tokens


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"d": 4, "heads": 2, "kv_heads": 1, "dim": 72},
            "k must be at least 72, the model's vectors that are normalised, not 64",
        ),
        (
            {"d": 2, "heads": 2, "kv_heads": 1, "dim": 2},
            "the model's shortest vector must have more values than its 2 outliers, not 2",
        ),
    ],
)
def test_products_that_do_not_fit_are_refused(generated, model_of, sizes, message):
    status, out, err = generated(model_of(sizes_of(**sizes)), PRODUCTS)
    assert (status, out) == (2, "") and err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_layers_that_kllm_does_not_have_are_refused(generated, model_of):
    model = model_of(sizes_of(4, 2, 1, sliding_window=99), arch="gemma3")
    status, out, err = generated(model, PRODUCTS)
    assert (status, out) == (2, "") and err.startswith(
        "error: the model's layers must be like Llama's or Qwen2's, not 'norms of the products wq,"
    )


TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %} a{% endif %}"
)
BOS = 35  # "#"


def chat_model(model_of, end: int | None = None, template: str | None = TEMPLATE):
    """A model with a chat template; ``#`` is special, and `end` ends an answer."""

    def extra(writer):
        writer.add_token_types([3 if number == BOS else 1 for number in range(len(TOKENS))])
        writer.add_bos_token_id(BOS)
        if end is not None:
            writer.add_eos_token_id(end)
        if template is not None:
            writer.add_chat_template(template)

    return model_of(FITTING["head size 4, no groups"], extra=extra)


def test_a_chat_ends_where_the_answer_does(generated, model_of):
    model = chat_model(model_of)
    prompt = [BOS, 257, 258, 259]
    assert open_model(model)[1].chat("the the") == prompt
    status, out, err = generated(model, text="--chat 'the the'")
    result = json.loads(out)
    assert (status, err) == (0, "") and result["prompt_tokens"] == len(prompt)
    tokens = result["tokens"]
    assert tokens == expected_tokens(model, prompt, 8)
    # The same model, in which one of these tokens ends the answer.
    end = tokens[4]
    model = chat_model(model_of, end)
    status, out, err = generated(model, text="--chat 'the the'")
    result = json.loads(out)
    assert (status, err) == (0, "") and result["tokens"] == tokens[: tokens.index(end) + 1]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "the model has no chat template (tokenizer.chat_template)"),
        ("{{ raise_exception('users only') }}", "the model's chat template does not run: users"),
    ],
)
def test_chats_that_are_refused(generated, model_of, template, message):
    status, out, err = generated(chat_model(model_of, template=template), text="--chat the")
    assert (status, out) == (2, "") and err.startswith(f"error: {message}")
    assert err.count("\n") == 1
