"""The forward pass against one written from the formulas in scalar loops and complex numbers."""

import cmath

import numpy as np
import pytest
from gguf import RopeScalingType

from golden import InputError
from golden.algorithms.attention import DecodeAttention, DenseAttention
from golden.lm.architectures import read_weights
from golden.lm.capture import capture
from golden.lm.gguf_file import GGUFFile
from golden.lm.gguf_tokenizer import read_tokenizer
from golden.lm.model import Llama, generate, rms_norm, rope, rope_angles, silu
from golden.lm.perplexity import perplexity
from tests.support.lm import tiny_llama
from tests.support.lm.tiny_llama import EPS, ROPE_BASE, SIZES, random_tensors, write_gguf

TEXT = [72, 256, 13, 200, 200, 3, 258, 99, 0, 259, 41]


def norm(x, gain):
    return x / np.sqrt((x * x).sum() / len(x) + EPS) * gain


def rotate(head, position, factors):
    """Neighbours (2i, 2i + 1) as one complex number, turned by position * base^(-2i / d)."""
    turned = []
    for pair in range(len(head) // 2):
        angle = position * ROPE_BASE ** (-2 * pair / len(head)) / factors[pair]
        z = complex(head[2 * pair], head[2 * pair + 1]) * cmath.exp(1j * angle)
        turned += [z.real, z.imag]
    return np.array(turned)


def straightforward(tensors, tokens, factors=None):
    """Logits [token, vocab] in float64, one token after another, and each layer's inputs."""
    factors = [1.0] * (SIZES["d"] // 2) if factors is None else factors
    w = {name.removesuffix(".weight"): t.astype(np.float64) for name, t in tensors.items()}
    heads, kv_heads, d = SIZES["heads"], SIZES["kv_heads"], SIZES["d"]
    cache = [([], []) for _ in range(SIZES["layers"])]
    seen = {}
    logits = []
    for position, token in enumerate(tokens):
        x = w["token_embd"][token]
        for layer in range(SIZES["layers"]):
            prefix = f"blk.{layer}."
            part = {name.removeprefix(prefix): t for name, t in w.items() if prefix in name}
            n = norm(x, part["attn_norm"])
            q = (part["attn_q"] @ n).reshape(heads, d)
            k = (part["attn_k"] @ n).reshape(kv_heads, d)
            v = (part["attn_v"] @ n).reshape(kv_heads, d)
            q = np.array([rotate(head, position, factors) for head in q])
            k = np.array([rotate(head, position, factors) for head in k])
            keys, values = cache[layer]
            keys.append(k)
            values.append(v)
            o = []
            for h in range(heads):
                kv = h // (heads // kv_heads)
                weights = np.array([np.exp(q[h] @ key[kv] / np.sqrt(d)) for key in keys])
                weights /= weights.sum()
                o.append(sum(p * value[kv] for p, value in zip(weights, values, strict=True)))
            x = x + part["attn_output"] @ np.concatenate(o)
            m = norm(x, part["ffn_norm"])
            gate = part["ffn_gate"] @ m
            inner = gate / (1 + np.exp(-gate)) * (part["ffn_up"] @ m)
            x = x + part["ffn_down"] @ inner
            for name, array in (("attn", n), ("q", q), ("k", k), ("v", v), ("down", inner)):
                seen.setdefault((layer, name), []).append(array)
        logits.append(w.get("output", w["token_embd"]) @ norm(x, w["output_norm"]))
    return np.array(logits), seen


@pytest.fixture(scope="module")
def model(tiny):
    return Llama(read_weights(GGUFFile(tiny)))


def test_logits(model, tensors):
    expected, _ = straightforward(tensors, TEXT)
    found = model.logits(model.hidden(TEXT))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_policy_sees_what_dense_sees(model, tensors):
    """The default path of a policy, token by token, gives the fast path's logits."""

    class Stepping(DenseAttention):
        sequence = DecodeAttention.sequence

        def step(self, q, k, v):
            return DenseAttention.sequence(self, q[:, None], k[:, None], v[:, None])[:, 0]

    expected, _ = straightforward(tensors, TEXT)
    attentions = [Stepping() for _ in range(SIZES["layers"])]
    found = model.logits(model.hidden(TEXT, attentions))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert all(attention.traffic.k_rows for attention in attentions)


def test_a_sequence_may_be_continued(model):
    whole = model.hidden(TEXT)
    attentions = model.dense()
    parts = [model.hidden(TEXT[:4], attentions), model.hidden(TEXT[4:], attentions, start=4)]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-4, atol=1e-5)


def test_generate_takes_the_likeliest_token(model, tensors):
    tokens = list(TEXT)
    for _ in range(4):
        tokens.append(int(straightforward(tensors, tokens)[0][-1].argmax()))
    assert generate(model, TEXT, 4) == tokens[len(TEXT) :]


def test_untied_output_and_stretched_frequencies(tmp_path):
    tensors = random_tensors(1)
    rng = np.random.default_rng(2)
    tensors["output.weight"] = rng.normal(size=tensors["token_embd.weight"].shape).astype("f4")
    factors = np.array([1, 1, 4, 8], "f4")
    path = write_gguf(tmp_path / "m.gguf", tensors | {"rope_freqs.weight": factors})
    model = Llama(read_weights(GGUFFile(path)))
    expected, _ = straightforward(tensors, TEXT, factors)
    np.testing.assert_allclose(model.logits(model.hidden(TEXT)), expected, rtol=1e-4, atol=1e-4)


def test_perplexity_is_exp_of_the_mean_loss(model, tensors):
    logits, _ = straightforward(tensors, TEXT)
    losses = [
        np.log(np.exp(row).sum()) - row[token]
        for row, token in zip(logits[:-1], TEXT[1:], strict=True)
    ]
    score = perplexity(model, TEXT)
    assert score.predicted == len(TEXT) - 1
    assert score.perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    rows = SIZES["layers"] * SIZES["kv_heads"] * len(TEXT) * (len(TEXT) + 1) // 2
    assert score.traffic.k_rows == score.traffic.dense_rows == rows


def test_perplexity_windows_are_seen_alone(model):
    halves = [perplexity(model, half) for half in (TEXT[:5], TEXT[5:10])]
    losses = [np.log(score.perplexity) * score.predicted for score in halves]
    score = perplexity(model, TEXT, context=5)
    assert score.predicted == 8
    assert score.perplexity == pytest.approx(np.exp(sum(losses) / 8), rel=1e-5)


def test_perplexity_takes_new_attentions_for_each_window(model):
    given = []

    def fresh():
        given.append([DenseAttention(scale=0.01) for _ in range(model.config.layers)])
        return given[-1]

    score = perplexity(model, TEXT, fresh, context=5)
    assert len(given) == 2 and all(a.rows for some in given for a in some)
    dense = perplexity(model, TEXT, context=5)
    assert score.perplexity != pytest.approx(dense.perplexity, rel=1e-3)


def test_perplexity_needs_two_tokens(model):
    with pytest.raises(ValueError, match="2 tokens at least"):
        perplexity(model, TEXT[:1])


def test_capture(model, tensors):
    _, seen = straightforward(tensors, TEXT)
    trace = capture(model, TEXT, [0, 2], activations=4, columns=5, meta={"model": "tiny"})
    near = {"rtol": 2e-3, "atol": 2e-3}
    for at, layer in enumerate((0, 2)):
        for name in "qkv":
            expected = np.array(seen[layer, name]).transpose(1, 0, 2)
            np.testing.assert_allclose(getattr(trace, name)[at], expected, **near)
        for name in ("attn", "down"):
            expected = np.array(seen[layer, name][:4])
            np.testing.assert_allclose(trace.x[f"layer{layer}.{name}"], expected, **near)
        parts = [tensors[f"blk.{layer}.attn_{name}.weight"] for name in "qkv"]
        # 48 + 16 + 16 columns of q, k and v side by side, five of them evenly spread.
        columns = np.concatenate(parts)[[0, 20, 40, 59, 79]].T
        np.testing.assert_allclose(trace.w[f"layer{layer}.attn"], columns, **near)
        assert trace.w[f"layer{layer}.down"].shape == (SIZES["ffn"], 5)
    assert trace.q.dtype == trace.w["layer0.attn"].dtype == np.float16
    assert trace.scale == pytest.approx(SIZES["d"] ** -0.5)
    assert trace.meta == {"model": "tiny", "layers": [0, 2], "tokens": len(TEXT), "columns": 5}


def test_capture_without_activations(model):
    trace = capture(model, TEXT, [1], activations=0, columns=5, meta={})
    assert trace.x == trace.w == {}
    assert trace.meta["columns"] == 0


def test_values_too_large_for_float16_stay_float32(model):
    """A trace must not turn a large activation into infinity."""
    weights = model.weights
    large = Llama(type(weights)(**{**vars(weights), "layers": _Scaled(weights.layers)}))
    trace = capture(large, TEXT, [0], activations=4, columns=2, meta={})
    assert trace.x["layer0.down"].dtype == np.float32
    assert np.abs(trace.x["layer0.down"]).max() > 65504


class _Scaled:
    """Layers whose gates and ups are a thousand times larger."""

    def __init__(self, layers):
        self._layers = layers

    def __getitem__(self, index):
        layer = self._layers[index]
        scaled = {"gate": 1000 * layer.gate, "up": 1000 * layer.up}
        return type(layer)(**{**vars(layer), **scaled})


def test_rms_norm_and_silu():
    x = np.array([[3.0, -4.0], [0.0, 0.0]], np.float32)
    gain = np.array([2.0, 1.0], np.float32)
    root = np.sqrt(12.5 + 1e-6)
    np.testing.assert_allclose(rms_norm(x, gain, 1e-6), [[6 / root, -4 / root], [0, 0]], rtol=1e-6)
    x = np.array([-1000, -1, 0, 1, 1000], np.float32)
    np.testing.assert_allclose(silu(x), [0, -0.26894143, 0, 0.7310586, 1000], atol=1e-6)


def test_rope_turns_neighbours_and_leaves_the_rest():
    x = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 6)
    angles = rope_angles(np.array([3]), 4, base=100.0)
    np.testing.assert_allclose(angles, [[np.exp(3j), np.exp(0.3j)]], rtol=1e-6)
    a, b = (1 + 2j) * np.exp(3j), (3 + 4j) * np.exp(0.3j)
    expected = [a.real, a.imag, b.real, b.imag, 5, 6]
    np.testing.assert_allclose(rope(x, angles)[0, 0], expected, rtol=1e-5)


def _without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


def _cases(tensors):
    wide = np.ones((3, SIZES["dim"]), "f4")
    return {
        "architecture": ({"arch": "gptj"}, tensors, "its architecture is 'gptj'; only 'llama', "),
        "missing": (
            {},
            _without(tensors, "blk.1.attn_q.weight"),
            "it lacks the tensor blk.1.attn_q.weight",
        ),
        "shape": (
            {},
            tensors | {"blk.1.ffn_up.weight": wide},
            "tensor blk.1.ffn_up.weight must have shape (40, 48), not (3, 48)",
        ),
        "bias": (
            {},
            tensors | {"blk.0.attn_q.bias": np.ones(48, "f4")},
            "it holds the tensor blk.0.attn_q.bias, which the architecture 'llama'",
        ),
        "scaling": (
            {"extra": lambda writer: writer.add_rope_scaling_type(RopeScalingType.YARN)},
            tensors,
            "RoPE scaling 'yarn' is not supported",
        ),
        "rotation": (
            {"extra": lambda writer: writer.add_rope_dimension_count(10)},
            tensors,
            "RoPE cannot rotate 10 of 8 elements",
        ),
    }


@pytest.mark.parametrize("case", _cases({}))
def test_models_that_cannot_be_run(tmp_path, tensors, case):
    settings, held, sentence = _cases(tensors)[case]
    path = write_gguf(tmp_path / "m.gguf", held, **settings)
    with pytest.raises(InputError) as caught:
        list(read_weights(GGUFFile(path)).layers)
    assert str(caught.value).startswith(f"model {path}: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("size", "value", "sentence"),
    [
        ("context", 0, "llama.context_length must be a whole number from 1, not 0"),
        ("heads", 0, "llama.attention.head_count must be a whole number from 1, not 0"),
        ("dim", 2, "llama.attention.key_length must be a whole number from 1, not 0"),
        ("layers", 2**32 - 1, "llama.block_count must be a whole number from 1, not 4294967295"),
        ("layers", 2**31 - 1, "it names 2147483647 layers, but holds 29 tensors"),
    ],
)
def test_sizes_that_cannot_be(tmp_path, tensors, monkeypatch, size, value, sentence):
    monkeypatch.setitem(tiny_llama.SIZES, size, value)
    path = write_gguf(tmp_path / "m.gguf", tensors)
    with pytest.raises(InputError) as caught:
        read_weights(GGUFFile(path))
    assert str(caught.value).startswith(f"model {path}: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (b"gpt-2", b"gp\xff-2", "metadata tokenizer.ggml.pre is damaged ("),
        (b"llama", b"llam\xff", "metadata general.architecture is damaged ("),
        ("Ġthe".encode(), b"\xff\xa0the", "metadata tokenizer.ggml.tokens is damaged ("),
        (b"blk.0.attn_q", b"blk.\xff.attn_q", "it is not a whole GGUF file ("),
    ],
)
def test_damaged_texts(tmp_path, tiny, old, new, sentence):
    path = tmp_path / "m.gguf"
    whole = tiny.read_bytes()
    at = whole.index(old, whole.index(b"general.architecture") + 20)
    path.write_bytes(whole[:at] + new + whole[at + len(old) :])
    with pytest.raises(InputError) as caught:
        file = GGUFFile(path)
        read_weights(file)
        read_tokenizer(file)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_gguf(tmp_path, tiny):
    with pytest.raises(InputError, match="there is no such file"):
        GGUFFile(tmp_path / "absent.gguf")
    whole = tiny.read_bytes()
    for content in (b"", b"GG", b"not a model at all", whole[:100], whole[: len(whole) // 2]):
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        with pytest.raises(InputError, match="it is not a whole GGUF file"):
            GGUFFile(path)
