"""The sixth design's attention against plain loops over queries and rows."""

import numpy as np
import pytest

from golden.algorithms.attention import DenseAttention, Traffic
from golden.algorithms.tsuru import TsuruAttention
from golden.algorithms.tsuru.row_codes import KeyConstants, channel_rows, rotated_rows
from tests.support.qkv import random_qkv

HEADS, KV_HEADS, TOKENS, D = 6, 2, 40, 8
SETTINGS = [
    {"threshold": 0.03},
    {"threshold": 0.05, "search": "rotated", "search_bits": 2, "sinks": 3},
    {"threshold": 0.03, "search_bits": 2, "key_bits": 4, "value_bits": 3, "sinks": 0},
    {"threshold": 0.1, "search": "rotated", "search_bits": 1, "rest": False, "scale": 0.6},
    {"threshold": 0.05, "search": "rotated", "search_bits": 2, "key_bits": 5, "levels": "float"},
    {"threshold": 0.05, "search": "rotated", "search_bits": 2, "key_bits": 4, "smooth": True},
    {"threshold": 0.03, "key_bits": 4, "smooth": True},
]


def constants_of(q, k):
    power = np.square(q.reshape(len(k), -1, q.shape[-1])).mean(axis=1)
    return [KeyConstants(k.mean(axis=1), k.std(axis=1), power)]


@pytest.fixture(scope="module")
def rows():
    q, k, v = random_qkv(HEADS, KV_HEADS, TOKENS, D, seed=51, sharpness=2.0)
    k = k * np.linspace(0.2, 3, D) + np.linspace(-4, 4, D)
    return q, k, v


def plain(q, k, v, constants, threshold, search="channels", search_bits=1, key_bits=7,
          value_bits=6, sinks=1, rest=True, scale=None, levels="normal", smooth=False):  # fmt: skip
    """Outputs, traffic, and which rows are chosen [kv head, query, row]."""
    scale = q.shape[2] ** -0.5 if scale is None else scale
    o, traffic = np.zeros(q.shape), Traffic()
    chosen = np.zeros((KV_HEADS, TOKENS, TOKENS), bool)
    for g in range(KV_HEADS):
        mean = constants.mean[g]
        heads = range(g * HEADS // KV_HEADS, (g + 1) * HEADS // KV_HEADS)
        t = np.sqrt(np.sqrt(constants.power[g]) / constants.deviation[g]) if smooth else np.ones(D)
        if search == "channels":
            widths = constants.widths(search_bits)
            codes, always = channel_rows((k - constants.mean[:, None]), widths, constants.deviation)
            coarse, always = codes[g] + mean, always[g]
        else:
            coarse = rotated_rows((k[g] - mean) * t, search_bits, levels) / t + mean
            always = np.zeros(TOKENS, bool)
        fine_k = rotated_rows((k[g] - mean) * t, key_bits, levels) / t + mean
        fine_v = rotated_rows(v[g], value_bits, levels)
        for matrix, exact in ((coarse, k[g]), (fine_k, k[g]), (fine_v, v[g])):
            matrix[:sinks] = exact[:sinks]
        for t in range(TOKENS):
            for h in heads:
                estimate = np.exp(scale * coarse[: t + 1] @ q[h, t])
                chosen[g, t, : t + 1] |= estimate / estimate.sum() > threshold
            chosen[g, t, : t + 1] |= always[: t + 1]
            chosen[g, t, t] = True
            chosen[g, t, : min(sinks, t + 1)] = True
            some = np.flatnonzero(chosen[g, t])
            others = np.flatnonzero(~chosen[g, t, : t + 1])
            for h in heads:
                weights = np.exp(scale * fine_k[some] @ q[h, t])
                top, bottom = weights @ fine_v[some], weights.sum()
                if rest and len(others):
                    share = np.exp(scale * coarse[others] @ q[h, t]).sum()
                    top, bottom = top + share * v[g, sinks : t + 1].mean(axis=0), bottom + share
                o[h, t] = top / bottom
            exact = min(sinks, t + 1)
            first = D * search_bits // 8 + (search == "rotated")
            traffic.k_rows += t + 1
            traffic.v_rows += len(some)
            traffic.k_bytes += (t + 1 - exact) * first + exact * 2 * D
            traffic.k_bytes += (len(some) - exact) * (D * key_bits // 8 + 1)
            traffic.v_bytes += (len(some) - exact) * (D * value_bits // 8 + 1) + exact * 2 * D
            traffic.dense(t + 1, D)
    return o, traffic, chosen


@pytest.mark.parametrize("settings", SETTINGS)
def test_equals_the_plain_loops(rows, settings):
    q, k, v = rows
    constants = constants_of(q, k)
    attention = TsuruAttention(**settings, constants=constants)
    o = attention.sequence(q, k, v)
    expected, traffic, chosen = plain(q, k, v, constants[0], **settings)
    np.testing.assert_allclose(o, expected, rtol=1e-9, atol=1e-9)
    assert attention.traffic == traffic
    assert attention.figures()["rows chosen"] == chosen.sum()
    # The setting says something: rows are left out, and other rows by other heads' groups.
    assert 0.1 < chosen.sum() / (KV_HEADS * TOKENS * (TOKENS + 1) / 2) < 0.9


@pytest.mark.parametrize("settings", SETTINGS[:2])
def test_runs_may_be_cut_anywhere(rows, settings):
    q, k, v = rows
    constants = constants_of(q, k)
    whole = TsuruAttention(**settings, constants=constants)
    expected = whole.sequence(q, k, v)
    stepped = TsuruAttention(**settings, constants=constants)
    np.testing.assert_allclose(
        np.stack([stepped.step(q[:, t], k[:, t], v[:, t]) for t in range(TOKENS)], axis=1),
        expected,
        rtol=1e-9,
    )
    assert stepped.traffic == whole.traffic
    after = TsuruAttention(**settings, constants=constants)
    after.prefill(q[:, :25], k[:, :25], v[:, :25])
    np.testing.assert_allclose(
        after.sequence(q[:, 25:], k[:, 25:], v[:, 25:]), expected[:, 25:], rtol=1e-9
    )


def test_with_a_threshold_of_zero_only_rounding_is_left(rows):
    q, k, v = rows
    exact = DenseAttention().sequence(q, k, v)
    errors = []
    for bits in (4, 6, 8):
        attention = TsuruAttention(
            0.0, key_bits=bits, value_bits=bits, constants=constants_of(q, k)
        )
        o = attention.sequence(q, k, v)
        assert attention.figures()["rows chosen"] == attention.figures()["rows in view"]
        errors.append(np.abs(o - exact).max())
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 0.06


def test_smooth_channels_lose_least_in_scores(rows):
    """Where keys' channels differ much, and queries look at the small ones as well."""
    q, k, v = rows
    k = k * 10.0 ** np.linspace(0, 1.5, D)
    q = q / 10.0 ** np.linspace(0, 1.5, D)
    exact = DenseAttention().sequence(q, k, v)
    settings = {"threshold": 0.0, "search": "rotated", "search_bits": 2, "value_bits": 8}
    errors = [
        np.abs(
            TsuruAttention(
                **settings, key_bits=4, smooth=smooth, constants=constants_of(q, k)
            ).sequence(q, k, v)
            - exact
        ).mean()
        for smooth in (False, True)
    ]
    assert errors[1] < 0.5 * errors[0]


def test_a_saturated_row_is_chosen(rows):
    q, k, v = rows
    k = k.copy()
    constants = constants_of(q, k)
    k[0, 9] = constants[0].mean[0] - 9 * constants[0].deviation[0]
    attention = TsuruAttention(0.5, constants=constants)
    attention.sequence(q, k, v)
    figures = attention.figures()
    assert figures["rows saturated"] == 1
    # The newest, the first, and this one, in 2 kv heads.
    chosen = plain(q, k, v, constants[0], 0.5)[2]
    assert chosen[0, 9:, 9].all()
    assert figures["rows chosen"] == chosen.sum()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 1.0}, "threshold must be at least 0 and below 1, not 1.0"),
        ({"search": "best"}, "search must be rotated or channels, not best"),
        ({"search_bits": 7}, "search_bits must be between 1 and 6, not 7"),
        ({"search_bits": 0, "search": "rotated"}, "search_bits must be between 1 and 8, not 0"),
        ({"key_bits": 9}, "key_bits must be between 1 and 8, not 9"),
        ({"value_bits": 0}, "value_bits must be between 1 and 8, not 0"),
        ({"sinks": -1}, "sinks must be at least 0, not -1"),
        ({"levels": "even"}, "levels must be normal or float, not even"),
        ({"levels": "float", "key_bits": 3}, "float levels have 2 or 4 to 8 bits, not 3"),
        (
            {"levels": "float", "search": "rotated", "search_bits": 1},
            "float levels have 2 or 4 to 8 bits, not 1",
        ),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        TsuruAttention(**settings)


def test_without_a_model():
    q, k, v = random_qkv(2, 1, 3, 4)
    with pytest.raises(ValueError, match="it needs a model"):
        TsuruAttention().sequence(q, k, v)
