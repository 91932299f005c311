"""StreamingLLM against attention over the set of tokens that it must see."""

import numpy as np
import pytest

from golden.algorithms.attention import ELEMENT_BYTES
from golden.algorithms.baselines import StreamingAttention, rope_of
from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.model import Llama, rope, rope_angles
from tests.support.lm.tiny_llama import random_tensors, write_gguf
from tests.support.qkv import random_qkv


def rotated(x, positions):
    """Pairs of elements of x [heads, tokens, d] by positions [tokens] times 3^-i."""
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    turned = pairs * np.exp(1j * np.outer(positions, 3.0 ** -np.arange(x.shape[2] // 2)))
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def plain_streaming(q, k, v, capacity, sinks, scale, cache_positions=False):
    """Each token over the sinks, the ``capacity`` - ``sinks`` tokens before it, and itself.

    With `cache_positions`, q and k are without positions and get those in the list of the seen.
    """
    heads, tokens, d = q.shape
    group = heads // len(k)
    o = np.zeros((heads, tokens, d))
    for t in range(tokens):
        seen = [j for j in range(t + 1) if j < sinks or j >= t - (capacity - sinks)]
        assert len(seen) <= capacity + 1
        for h in range(heads):
            query, keys = q[h, t], k[h // group, seen]
            if cache_positions:
                places = np.arange(len(seen))
                query = rotated(query[None, None], places[-1:])[0, 0]
                keys = rotated(keys[None], places)[0]
            scores = scale * keys @ query
            e = np.exp(scores - scores.max())
            for j, weight in zip(seen, e / e.sum(), strict=True):
                o[h, t] += weight * v[h // group, j]
    return o


@pytest.mark.parametrize(
    ("capacity", "sinks"), [(1, 0), (2, 1), (5, 4), (9, 4), (9, 0), (29, 4), (30, 4)]
)
@pytest.mark.parametrize("scale", [None, 1.1])
def test_equals_the_plain_loops(capacity, sinks, scale):
    q, k, v = random_qkv(6, 2, 30, 8, seed=31)
    attention = StreamingAttention(capacity, sinks, scale)
    o = attention.sequence(q, k, v)
    expected = plain_streaming(q, k, v, capacity, sinks, scale or 8**-0.5)
    np.testing.assert_allclose(o, expected, rtol=1e-10, atol=1e-13)
    assert attention.evicted == list(range(sinks, sinks + 30 - capacity))


@pytest.mark.parametrize(("capacity", "sinks"), [(1, 0), (2, 1), (5, 4), (9, 4), (9, 0), (30, 4)])
def test_positions_of_the_cache(capacity, sinks):
    q, k, v = random_qkv(6, 2, 30, 8, seed=34)
    rope = lambda keys, n: rotated(keys, np.full(keys.shape[1], n))  # noqa: E731
    attention = StreamingAttention(capacity, sinks, positions="cache", rope=rope)
    text = np.arange(30)
    o = attention.sequence(rotated(q, text), rotated(k, text), v)
    expected = plain_streaming(q, k, v, capacity, sinks, 8**-0.5, cache_positions=True)
    np.testing.assert_allclose(o, expected, rtol=1e-9, atol=1e-12)
    by_text = StreamingAttention(capacity, sinks).sequence(rotated(q, text), rotated(k, text), v)
    assert (np.abs(by_text - o).max() > 1e-3) == (sinks > 0 and capacity < 29)


def test_the_rope_of_a_model(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", random_tensors())
    model = Llama(read_weights(GGUFFile(path)))
    c = model.config
    k = random_qkv(2, 2, 1, c.d, dtype=np.float32)[1]
    at = lambda n: rope(k, rope_angles(np.array([n]), c.rope_dims, c.rope_base))  # noqa: E731
    np.testing.assert_allclose(rope_of(model)(at(5), 37), at(42), atol=1e-6)


def test_positions_of_the_cache_need_a_rope():
    q, k, v = random_qkv(2, 1, 4, 8)
    attention = StreamingAttention(2, 1, positions="cache")
    attention.sequence(q[:, :3], k[:, :3], v[:, :3])
    with pytest.raises(ValueError, match="positions of the cache need the rotary encoding of a m"):
        attention.step(q[:, 3], k[:, 3], v[:, 3])


def test_equals_the_plain_loops_on_real_data(shipped_trace):
    q, k, v = (getattr(shipped_trace, x)[1, :, :150] for x in "qkv")
    attention = StreamingAttention(20, scale=shipped_trace.scale)
    expected = plain_streaming(*(x.astype(np.float64) for x in (q, k, v)), 20, 4, 0.125)
    np.testing.assert_allclose(attention.sequence(q, k, v), expected, rtol=1e-4, atol=1e-5)


def test_one_eviction_a_step_when_full_and_what_it_costs():
    q, k, v = random_qkv(6, 2, 9, 8, seed=33)
    attention = StreamingAttention(6, sinks=2)
    for t in range(9):
        attention.step(q[:, t], k[:, t], v[:, t])
        assert len(attention.evicted) == max(t + 1 - 6, 0)
        assert attention.rows == 2 * min(t + 1, 6)
    rows = 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 7 + 7)
    assert (attention.traffic.k_rows, attention.traffic.v_rows) == (rows, rows)
    assert attention.traffic.bytes == 2 * rows * 8 * ELEMENT_BYTES
    assert attention.traffic.dense_rows == 2 * 45
    assert attention.state_bytes == 0


@pytest.mark.parametrize(
    ("capacity", "sinks", "message"),
    [
        (0, 0, "capacity must be at least 1, not 0"),
        (4, 4, "sinks must be between 0 and capacity - 1 = 3, not 4"),
        (4, -1, "sinks must be between 0 and capacity - 1 = 3, not -1"),
    ],
)
def test_bad_parameters(capacity, sinks, message):
    with pytest.raises(ValueError, match=message):
        StreamingAttention(capacity, sinks)


def test_bad_positions():
    with pytest.raises(ValueError, match="positions must be text or cache, not slot"):
        StreamingAttention(4, 1, positions="slot")
