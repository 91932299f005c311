"""SpAtten against plain loops, token by token through the layers."""

import math

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention, Traffic
from golden.algorithms.baselines import SpAttenAttention
from golden.algorithms.baselines.spatten import kept_share
from golden.evaluation.policies import parse
from tests.support.qkv import random_qkv

LAYERS = 10
SETTINGS = [
    {"keep": 0.4, "values": 0.5},
    {"keep": 0.6, "values": 0.3, "recent": 0.2, "first_bits": 3, "confidence": 0.5},
    {"keep": 0.5, "values": 1.0, "recent": 0.0, "first_bits": 12, "value_bits": 12, "scale": 0.8},
    {"keep": 0.35, "values": 0.4, "prompt": 9, "bits": 8, "first_bits": 4, "value_bits": 5},
]


def inputs(tokens=26, d=6):
    """q, k, v of each layer; the first row has the peaks, so that the scales stay as they are."""
    made = []
    for layer in range(LAYERS):
        q, k, v = random_qkv(4, 2, tokens, d, seed=50 + layer, sharpness=2)
        k[:, 0, 0], v[:, 0, 0] = 5, -5
        made.append((q, k, v))
    return made


def largest(values, number):
    """Keys of the largest of a dict's values, the lowest key on ties."""
    return set(sorted(values, key=lambda j: (-values[j], j))[: max(math.floor(number + 1e-9), 1)])


def plain(
    layers, runs, *, keep, values, bits=12, first_bits=8, confidence=0.05, value_bits=8, **options
):
    """Outputs by layer, and all reads: of heads that share rows, and alone.

    `runs` are the ends of the runs of tokens that each layer takes before the next.
    """
    prompt, recent = options.get("prompt", 0), options.get("recent", 0.5)
    (heads, tokens, d), kv_heads = layers[0][0].shape, len(layers[0][1])
    group, scale = heads // kv_heads, options.get("scale", d**-0.5)
    unit = 1.25 * 5 / (2 ** (bits - 1) - 1)
    outputs = [np.zeros(q.shape) for q, _, _ in layers]
    total = [0.0] * tokens
    given = [[0.0] * tokens for _ in layers]  # in this run
    traffic, alone = Traffic(), Traffic()
    size, rest, value_size = (
        math.ceil(d * n / 8) for n in (first_bits, bits - first_bits, value_bits)
    )
    for t in range(tokens):
        if t in runs:
            total = [before + sum(column) for before, *column in zip(total, *given, strict=True)]
            given = [[0.0] * tokens for _ in layers]
        kept = set(range(t + 1))
        for index, (q, k, v) in enumerate(layers):
            traffic.dense(kv_heads * (t + 1), d)
            alone.dense(heads * (t + 1), d)
            if t >= prompt:
                number = kept_share(index, len(layers), keep) * (t + 1)
                importance = {j: total[j] + sum(given[i][j] for i in range(index)) for j in kept}
                newest = max(math.floor(recent * math.floor(number + 1e-9) + 1e-9), 1)
                importance |= dict.fromkeys(kept & set(range(t - newest + 1, t + 1)), math.inf)
                kept = largest(importance, number) if number < len(kept) else kept
            whole_of = [set() for _ in range(kv_heads)]
            values_of = [set() for _ in range(kv_heads)]
            for h in range(heads):
                g = h // group

                def probabilities(cut, g=g, h=h, q=q, k=k, kept=kept, t=t):
                    codes = {j: [round(x / unit) // cut * cut for x in k[g, j]] for j in kept}
                    e = {j: math.exp(scale * unit * np.dot(q[h, t], codes[j])) for j in codes}
                    return {j: x / math.fsum(e.values()) for j, x in e.items()}

                p, whole = probabilities(2 ** (bits - first_bits)), False
                if t < prompt or max(p.values()) < confidence or first_bits == bits:
                    p, whole = probabilities(1), True
                if whole:
                    whole_of[g] |= kept
                read = kept if t < prompt else largest(p, values * len(kept))
                values_of[g] |= read
                step = 2 ** (bits - value_bits)
                for j in read:
                    row = [round(round(x / unit) / step) * step * unit for x in v[g, j]]
                    outputs[index][h, t] += p[j] * np.array(row)
                for j in kept:
                    given[index][j] += p[j]
                alone.k_rows += len(kept)
                alone.k_bytes += len(kept) * (size + whole * rest)
                alone.v_rows += len(read)
                alone.v_bytes += len(read) * value_size
            for g in range(kv_heads):
                traffic.k_rows += len(kept)
                traffic.k_bytes += len(kept) * size + len(whole_of[g]) * rest
                traffic.v_rows += len(values_of[g])
                traffic.v_bytes += len(values_of[g]) * value_size
    return outputs, traffic, alone


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("block", [4, 128])
@pytest.mark.parametrize("runs", [[9, 26], [*range(1, 27)]], ids=["runs", "steps"])
def test_equals_the_plain_loops(settings, runs, block, monkeypatch):
    """Layer by layer in runs of tokens, as the language model runs them."""
    monkeypatch.setattr("golden.algorithms.baselines.spatten._QUERY_BLOCK", block)
    layers = inputs()
    made = SpAttenAttention.for_layers([settings] * LAYERS)
    expected, traffic, alone = plain(layers, runs, **settings)
    for first, last in zip([0, *runs], runs, strict=False):
        for attention, arrays, o in zip(made, layers, expected, strict=True):
            part = [x[:, first:last] for x in arrays]
            if last - first == 1:
                got = attention.step(*(x[:, 0] for x in part))[:, None]
            else:
                got = attention.sequence(*part)
            np.testing.assert_allclose(got, o[:, first:last], rtol=1e-8, atol=1e-10)
    found = Traffic(), Traffic()
    for attention in made:
        found[0].add(attention.traffic)
        found[1].add(attention.alone)
        assert attention.rows == 2 * 26 and attention.evicted == []
    assert found == (traffic, alone)
    assert traffic.k_rows < 0.9 * traffic.dense_rows and alone.v_rows <= alone.k_rows
    assert [attention.state_bytes for attention in made] == [16 + 4 * 26, *[16] * (LAYERS - 1)]


def test_scales_that_change_within_a_run(monkeypatch):
    """The rows that a query sees do not depend on the blocks."""
    outputs = []
    for block in (3, 128):
        monkeypatch.setattr("golden.algorithms.baselines.spatten._QUERY_BLOCK", block)
        made = SpAttenAttention.for_layers([{"calibration": 5}] * LAYERS)
        layers = [random_qkv(4, 2, 30, 6, seed=70 + n, sharpness=2) for n in range(LAYERS)]
        outputs.append([a.sequence(*arrays) for a, arrays in zip(made, layers, strict=True)])
        assert max(attention._cache.stored_again for attention in made) > 5
    np.testing.assert_allclose(*outputs, rtol=1e-8, atol=1e-10)


def test_the_schedule_is_that_of_the_released_workload():
    """GPT-2 medium at 1024 tokens, of which 12 in 24 layers' worth of keys are read."""
    found = [math.floor(1024 * kept_share(layer, 24, 0.5)) for layer in range(24)]
    assert found == [1024] * 2 + [921] + [819] * 2 + [614] * 6 + [307] * 13
    assert sum(kept_share(layer, 24, 0.7) for layer in range(24)) == pytest.approx(24 * 0.7)


def test_without_pruning_it_is_dense_attention_on_codes():
    q, k, v = random_qkv(4, 2, 70, 16, dtype=np.float32)
    attention = SpAttenAttention(keep=1, values=1, first_bits=12, value_bits=12)
    o = attention.sequence(q, k, v)
    assert o.dtype == np.float32
    np.testing.assert_allclose(o, DenseAttention().sequence(q, k, v), atol=1e-2)
    assert attention.traffic.k_bytes == attention.traffic.v_bytes == attention.traffic.k_rows * 24
    assert attention.row_bits == 12


def test_a_pruned_token_is_out_of_all_later_layers():
    layers = inputs()
    made = SpAttenAttention.for_layers([{"keep": 0.4}] * LAYERS)
    before = None
    for attention, arrays in zip(made, layers, strict=True):
        attention.sequence(*arrays)
        kept = [kept for _, _, kept in attention._cascade._runs.values()]
        if kept and before is not None:
            assert not (kept[0] & ~before).any()
            assert kept[0].diagonal().all()  # the newest
        before = kept[0] if kept else before
    assert not made[0]._cascade._runs
    assert before[-1].sum() == math.floor(26 * kept_share(LAYERS - 1, LAYERS, 0.4))


def test_probabilities_that_underflow():
    """Kept tokens of probability 0 are read before pruned ones."""
    made = SpAttenAttention.for_layers([{"keep": 0.4, "values": 1.0}] * LAYERS)
    for attention, (q, k, v) in zip(made, inputs(), strict=True):
        assert np.isfinite(attention.sequence(1e4 * q, k, v)).all()
        assert attention.alone.v_rows == attention.alone.k_rows
        assert attention.traffic.v_rows == attention.traffic.k_rows


def test_layers_out_of_order():
    q, k, v = random_qkv(4, 2, 4, 6)
    made = parse("spatten").attentions(3)
    with pytest.raises(ValueError, match="layer 1 must take the same tokens as the layer before"):
        made[1].sequence(q, k, v)
    made = parse("spatten").attentions(3)
    made[0].sequence(q, k, v)
    with pytest.raises(ValueError, match="layer 2 must take the same tokens as the layer before"):
        made[2].sequence(q, k, v)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": 0.28}, "keep must be above 2/7, where the last layer keeps none, not 0.28"),
        ({"keep": 1.1}, "keep must be above 2/7"),
        ({"values": 0}, "values must be above 0 and at most 1, not 0"),
        ({"bits": 17}, "bits must be between 2 and 16, not 17"),
        ({"first_bits": 13}, "first_bits must be between 1 and bits, 12, not 13"),
        ({"value_bits": 0}, "value_bits must be between 1 and bits, 12, not 0"),
        ({"recent": 1.5}, "recent must be between 0 and 1, not 1.5"),
        ({"prompt": -1}, "prompt must be at least 0, not -1"),
        ({"calibration": 0}, "calibration must be at least 1, not 0"),
        ({"headroom": 0.5}, "headroom must be a finite number of at least 1, not 0.5"),
    ],
)
def test_bad_parameters(settings, message):
    with pytest.raises(ValueError, match=message):
        SpAttenAttention(**settings)
