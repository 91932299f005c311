"""An algorithm without a core in ``python -m sim compare``: SpAtten's reads through a DRAM."""

import json

import numpy as np
import pytest

from golden.algorithms.baselines.spatten import SpAttenAttention
from sim.studies.compare.algorithms import Piece, spatten, tokens_kept
from sim.studies.compare.data import Shape, made
from sim.studies.compare.rows import Setting

SHAPE = Shape(d=8, n=60, heads=4, kv_heads=2)
PUBLISHED = {"keep": 0.5, "values": 0.3}


@pytest.mark.parametrize("knobs", [PUBLISHED, {"keep": 1.0, "values": 1.0}])
def test_bytes_are_those_that_the_policy_counts(knobs):
    """Of its last step, on the tokens kept; the new rows are written besides."""
    data = made(SHAPE)
    tokens = tokens_kept(SHAPE.n, int(knobs["keep"] * SHAPE.n))
    policy = SpAttenAttention(1.0, knobs["values"], prompt=len(tokens) - 1, scale=data.scale)
    q, k, v = (x[:, tokens] for x in (data.q, data.k, data.v))
    policy.sequence(q[:, :-1], k[:, :-1], v[:, :-1])
    before = policy.traffic.k_bytes, policy.traffic.v_bytes
    policy.step(q[:, -1], k[:, -1], v[:, -1])
    moves = spatten(SHAPE, data, knobs)
    assert moves.bytes["k_read"] == policy.traffic.k_bytes - before[0]
    assert moves.bytes["v_read"] == policy.traffic.v_bytes - before[1]
    assert moves.bytes["k_written"] == 2 * 8 * 12 // 8 and moves.bytes["v_written"] == 2 * 8


def test_keys_whose_queries_are_unsure_are_read_in_all_bits():
    """Keys that are all alike give no query a probability above 1 / n; one that stands out does."""
    data = made(Shape(d=8, n=60, heads=4, kv_heads=2))
    data.k[:] = 1
    flat = spatten(SHAPE, data, PUBLISHED).bytes["k_read"]
    data.k[:, 0] = np.sign(data.q[::2, -1]) * 40
    data.q[1::2, -1] = data.q[::2, -1]
    sharp = spatten(SHAPE, data, PUBLISHED).bytes["k_read"]
    assert flat == 2 * 30 * (8 + 4) and sharp == 2 * 30 * 8


def test_half_of_the_tokens_are_the_newest():
    assert tokens_kept(20, 6).tolist() == [0, 8, 16, 17, 18, 19]
    assert tokens_kept(20, 20).tolist() == [*range(20)]


def test_neighbouring_rows_share_a_line():
    rows = np.array([0, 1, 2, 9])
    assert Piece(64, 32, rows).requests(64) == [(False, 64), (False, 128), (False, 320)]
    assert Piece(32, 96, rows[:1], write=True).requests(64) == [(True, 0), (True, 64)]


def test_rows_of_the_command(run):
    line = "compare --d 8 --n 60 --heads 4 --kv-heads 2 --design spatten --json"
    status, out, err = run(f"{line} --memory hbm2 --memory lpddr4_3200")
    ideal, hbm2, _, lpddr4 = json.loads(out)["rows"]
    assert status == 0 and ideal["design"] == "ideal"
    assert hbm2["bytes"] == lpddr4["bytes"] == spatten(SHAPE, made(SHAPE), PUBLISHED).bytes
    for row in (hbm2, lpddr4):
        assert row["cycles"] > row["cycles_at_peak"] > 0 < row["activations"]
        assert row["cycles_ideal_port"] is None and row["knob"].startswith("50% of the tokens, 30%")
        assert "--design spatten" in row["source"]
    setting = Setting(SHAPE, "hbm2", "1000")
    assert hbm2["cycles_at_peak"] == setting.cycles_at_peak(sum(hbm2["bytes"].values()))


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("--set spatten.keep=0.2", "keep of spatten must be above 2/7"),
        ("--set spatten.values=0", "values of spatten must be above 0"),
        ("--set spatten.keep=some", "keep of spatten must be a number, not some"),
        ("--set spatten.rows=3", "a setting of spatten must be one of keep, values"),
        ("--memory ideal", "a memory without banks tells nothing"),
    ],
)
def test_refusals(run, arguments, said):
    status, out, err = run(
        f"compare --d 8 --n 60 --heads 4 --kv-heads 2 --design spatten {arguments}"
    )
    assert status != 0 and not out and said in err
