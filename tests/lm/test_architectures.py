"""Qwen2 and Gemma 3 against loops written from the papers' formulas, in float64."""

import cmath
import math

import numpy as np
import pytest

from golden import InputError
from golden import __main__ as cli
from golden.algorithms.attention import DenseAttention, WindowAttention
from golden.algorithms.baselines import StreamingAttention
from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.model import Llama, gelu, generate
from golden.lm.perplexity import perplexity
from golden.trace import load
from tests.support.lm.tiny_llama import EPS, ROPE_BASE, SIZES, random_tensors, write_gguf

TEXT = [72, 256, 13, 200, 200, 3, 258, 99, 0, 259, 41, 7, 13]
# Layers 0 to 4 and 6 see four tokens, layer 5 sees all.
GEMMA = SIZES | {"layers": 7, "heads": 4, "d": 12, "key_length": 12, "sliding_window": 4}
SIZES_OF = {"qwen2": SIZES, "gemma3": GEMMA}
LOCAL_BASE = 10000.0


def norm(x, gain):
    return x / np.sqrt((x * x).sum() / len(x) + EPS) * gain


def rotate(head, position, base):
    """Elements i and i + d / 2 as one complex number, turned by position * base^(-2i / d)."""
    half = len(head) // 2
    turned = head.copy()
    for i in range(half):
        z = complex(head[i], head[i + half]) * cmath.exp(1j * position * base ** (-i / half))
        turned[i], turned[i + half] = z.real, z.imag
    return turned


def silu(x):
    return x / (1 + math.exp(-x))


def tanh_gelu(x):
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def straightforward(arch, tensors, tokens):
    """Logits [token, vocab], and the queries [layer][token][head, d] before pairs are reordered."""
    sizes, gemma = SIZES_OF[arch], arch == "gemma3"
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    heads, kv_heads, d = sizes["heads"], sizes["kv_heads"], sizes["d"]
    activate = tanh_gelu if gemma else silu
    cache = [([], []) for _ in range(sizes["layers"])]
    logits, queries = [], [[] for _ in range(sizes["layers"])]
    for position, token in enumerate(tokens):
        x = w["token_embd.weight"][token] * (math.sqrt(sizes["dim"]) if gemma else 1)
        for layer in range(sizes["layers"]):
            part = {n.removeprefix(f"blk.{layer}."): t for n, t in w.items() if f"k.{layer}." in n}
            n = norm(x, part["attn_norm.weight"])
            q, k, v = (part[f"attn_{name}.weight"] @ n for name in "qkv")
            if arch == "qwen2":
                q, k, v = q + part["attn_q.bias"], k + part["attn_k.bias"], v + part["attn_v.bias"]
            q, k, v = q.reshape(heads, d), k.reshape(kv_heads, d), v.reshape(kv_heads, d)
            local = gemma and layer != 5
            if gemma:
                q = np.array([norm(head, part["attn_q_norm.weight"]) for head in q])
                k = np.array([norm(head, part["attn_k_norm.weight"]) for head in k])
            base = LOCAL_BASE if local else ROPE_BASE
            q = np.array([rotate(head, position, base) for head in q])
            k = np.array([rotate(head, position, base) for head in k])
            queries[layer].append(q)
            keys, values = cache[layer]
            keys.append(k)
            values.append(v)
            first = max(0, position + 1 - sizes["sliding_window"]) if local else 0
            o = []
            for h in range(heads):
                kv = h // (heads // kv_heads)
                weights = [np.exp(q[h] @ key[kv] / math.sqrt(d)) for key in keys[first:]]
                total = sum(weights)
                pairs = zip(weights, values[first:], strict=True)
                o.append(sum(p / total * value[kv] for p, value in pairs))
            y = part["attn_output.weight"] @ np.concatenate(o)
            x = x + (norm(y, part["post_attention_norm.weight"]) if gemma else y)
            m = norm(x, part["ffn_norm.weight"])
            gate = np.array([activate(g) for g in part["ffn_gate.weight"] @ m])
            y = part["ffn_down.weight"] @ (gate * (part["ffn_up.weight"] @ m))
            x = x + (norm(y, part["post_ffw_norm.weight"]) if gemma else y)
        output = w.get("output.weight", w["token_embd.weight"])
        logits.append(output @ norm(x, w["output_norm.weight"]))
    return np.array(logits), queries


@pytest.fixture(scope="module", params=SIZES_OF)
def arch(request):
    return request.param


@pytest.fixture(scope="module")
def tensors(arch):
    return random_tensors(3, SIZES_OF[arch], arch)


@pytest.fixture(scope="module")
def model(arch, tensors, tmp_path_factory):
    path = tmp_path_factory.mktemp(arch) / "tiny.gguf"
    return Llama(read_weights(GGUFFile(write_gguf(path, tensors, sizes=SIZES_OF[arch], arch=arch))))


@pytest.fixture(scope="module")
def expected(arch, tensors):
    return straightforward(arch, tensors, TEXT)


def test_logits(model, expected):
    found = model.logits(model.hidden(TEXT))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected[0], rtol=1e-4, atol=1e-3)


def test_pairs_are_neighbours(model, expected):
    """As in every model, though the files have halves."""
    seen = {}

    def observer(layer, name, array):
        seen[layer, name] = array

    model.hidden(TEXT, observer=observer)
    half = model.config.d // 2
    for layer, queries in enumerate(expected[1]):
        q, wanted = seen[layer, "q"], np.array(queries).transpose(1, 0, 2)
        np.testing.assert_allclose(q[..., 0::2], wanted[..., :half], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(q[..., 1::2], wanted[..., half:], rtol=1e-3, atol=1e-3)


def test_a_sequence_may_be_continued(model):
    whole = model.hidden(TEXT)
    attentions = model.dense()
    parts = [model.hidden(TEXT[a:b], attentions, start=a) for a, b in ((0, 6), (6, 7), (7, 13))]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-3, atol=1e-4)


def test_generate(arch, model, tensors):
    tokens = TEXT[:5]
    for _ in range(3):
        tokens.append(int(straightforward(arch, tensors, tokens)[0][-1].argmax()))
    assert generate(model, TEXT[:5], 3) == tokens[5:]


def test_an_output_matrix_of_its_own(arch, tensors, tmp_path):
    output = np.random.default_rng(4).normal(size=tensors["token_embd.weight"].shape).astype("f4")
    tensors = tensors | {"output.weight": output}
    path = write_gguf(tmp_path / "m.gguf", tensors, sizes=SIZES_OF[arch], arch=arch)
    model = Llama(read_weights(GGUFFile(path)))
    logits, _ = straightforward(arch, tensors, TEXT[:4])
    found = model.logits(model.hidden(TEXT[:4]))
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-3)


def test_gelu():
    x = np.array([-20, -1, -0.1, 0, 0.5, 3, 20], np.float32)
    np.testing.assert_allclose(gelu(x), [tanh_gelu(float(n)) for n in x], rtol=1e-5, atol=1e-7)


def gemma(path, sizes=GEMMA, extra=None, tensors=None):
    tensors = tensors or random_tensors(3, sizes, "gemma3")
    return GGUFFile(write_gguf(path, tensors, sizes=sizes, arch="gemma3", extra=extra))


def test_policies_are_for_layers_that_see_all(tmp_path):
    model = Llama(read_weights(gemma(tmp_path / "m.gguf")))
    attentions = model.attentions(
        lambda layers: [StreamingAttention(capacity=6, sinks=1) for _ in range(layers)]
    )
    assert [type(attention) for attention in attentions] == [
        *[WindowAttention] * 5,
        StreamingAttention,
        WindowAttention,
    ]
    assert [type(a) for a in model.dense()] == [
        *[WindowAttention] * 5,
        DenseAttention,
        WindowAttention,
    ]
    score = perplexity(model, TEXT, lambda: model.attentions(lambda layers: [DenseAttention()]))
    assert score == perplexity(model, TEXT)
    seen = [6 * min(t, 4) + t for t in range(1, len(TEXT) + 1)]
    assert score.traffic.k_rows == score.traffic.dense_rows == GEMMA["kv_heads"] * sum(seen)


def test_traces_are_of_layers_that_see_all(tmp_path, call):
    model = gemma(tmp_path / "m.gguf").path
    line = f"trace --gguf {model} --activations 0 -o {tmp_path / 't.npz'} --tokens"
    status, _, err = call(cli.main, f"{line} 9")
    assert status == 0, err
    assert load(tmp_path / "t.npz").meta["layers"] == [5]
    status, out, err = call(cli.main, f"{line} 9 --layers 5,6")
    assert (status, out) == (2, "") and err == (
        "error: --layers: layer 6 sees a window of 4 tokens, and a trace has none; give"
        " --tokens 4 or fewer, or another layer\n"
    )
    status, _, err = call(cli.main, f"{line} 4 --layers 5,6")
    assert status == 0, err


def test_other_runs_and_bases_of_local_layers(tmp_path):
    def extra(writer):
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 3)
        writer.add_float32("gemma3.rope.freq_base_swa", 77.0)

    local = read_weights(gemma(tmp_path / "m.gguf", extra=extra)).config.local
    assert (local.layers, local.window, local.rope_base) == ({0, 1, 3, 4, 6}, 4, 77.0)


def test_stretched_positions_are_of_layers_that_see_all(tmp_path):
    def extra(writer):
        writer.add_string("gemma3.rope.scaling.type", "linear")
        writer.add_float32("gemma3.rope.scaling.factor", 8.0)

    plain = Llama(read_weights(gemma(tmp_path / "a.gguf"))).angles(np.array([3, 8]))
    found = Llama(read_weights(gemma(tmp_path / "b.gguf", extra=extra))).angles(np.array([3, 8]))
    np.testing.assert_array_equal(found[0], plain[0])
    np.testing.assert_allclose(found[5][1], plain[5][0] ** (1 / 3), rtol=1e-6)  # 8 / 8 is 1


def test_queries_of_the_largest_gemma_have_another_scale(tmp_path):
    sizes = GEMMA | {"layers": 62, "heads": 2}
    tensors = random_tensors(3, sizes, "gemma3")
    norms = read_weights(gemma(tmp_path / "m.gguf", sizes, tensors=tensors)).layers[61].norms
    gain = tensors["blk.61.attn_q_norm.weight"] * math.sqrt(12) / math.sqrt(48 / 2)
    np.testing.assert_allclose(np.sort(norms["wq"]), np.sort(gain), rtol=1e-6)
    other = tensors["blk.61.attn_k_norm.weight"]
    np.testing.assert_array_equal(np.sort(norms["wk"]), np.sort(other))


@pytest.mark.parametrize(
    ("sizes", "extra", "dropped", "sentence"),
    [
        (
            {},
            lambda w: w.add_value_length(8),
            None,
            "its values are not as long as its keys, 12 elements",
        ),
        (
            {},
            lambda w: w.add_float32("gemma3.final_logit_softcapping", 30.0),
            None,
            "its final_logit_softcapping is not supported",
        ),
        ({"sliding_window": None}, None, None, "it lacks the metadata gemma3.attention.sliding_"),
        ({}, None, "blk.6.post_ffw_norm.weight", "it lacks the tensor blk.6.post_ffw_norm.weight"),
    ],
)
def test_files_that_cannot_be_run(tmp_path, sizes, extra, dropped, sentence):
    sizes = {name: size for name, size in (GEMMA | sizes).items() if size is not None}
    tensors = random_tensors(3, GEMMA, "gemma3")
    tensors = {name: tensor for name, tensor in tensors.items() if name != dropped}
    with pytest.raises(InputError) as caught:
        list(read_weights(gemma(tmp_path / "m.gguf", sizes, extra, tensors)).layers)
    assert sentence in str(caught.value)
