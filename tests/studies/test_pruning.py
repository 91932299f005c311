"""Speed of Token-Picker's core: what is measured, what follows from it, the page in the docs."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from golden.algorithms.topick.reads import job_of
from golden.trace import Trace, TraceError, shipped
from hw.topick.core_parameters import TopickCoreParameters
from sim.__main__ import parser
from sim.core.tools import ToolError
from sim.studies import topick
from sim.studies.topick import plans
from sim.studies.topick.measured import JobRun, Measured, Pair, Results, read
from sim.studies.topick.page import bound
from sim.studies.topick.rtl import Core, Traces, core, joined, keys_of
from sim.studies.topick.together import Together, pairs, read_together, summary_together

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SMALL = dataclasses.replace(TopickCoreParameters.preset("small"), observe=False)
MEMORY = 50


@pytest.fixture(scope="module")
def measured():
    return read(RESULTS / "topick_speed.json")


@pytest.fixture(scope="module")
def together():
    return read_together(RESULTS / "topick_speed.json")


def test_what_texts_at_once_save(together):
    """Six texts: a lane waits seldom for others; the more, the fewer tokens there are."""
    gains = {}
    for base, core_ in pairs(together):
        assert core_.cycles < core_.in_turn and base.cycles < base.in_turn
        assert max(map(max, core_.chunks)) <= max(core_.together)
        gains[core_.texts, core_.tokens] = core_.in_turn / core_.cycles
        # What all lanes read is about what they read in turn; timing decides on a few chunks.
        assert base.chunks == [[2 * 3 * base.tokens * 3 * base.texts] * 3] * 3
    assert {texts for texts, _ in gains} == {2, 3, 6}
    assert 1.12 < gains[6, 500] < gains[6, 250] < gains[6, 125] < gains[6, 64]
    [six] = [core_ for _, core_ in pairs(together) if (core_.texts, core_.tokens) == (6, 500)]
    assert six.use > 0.92


def test_texts_at_once_by_hand(shipped_trace):
    """The same text twice, in two contexts."""
    traces = Traces(shipped_trace, None)
    p = dataclasses.replace(SMALL, contexts=2)
    compiled, job = Core(p), small_job(shipped_trace, 30)
    alone, chunks = compiled.together([job], 0.02, MEMORY)
    both, of_both = compiled.together([job, job], 0.02, MEMORY)
    assert alone < both < 2 * alone and sum(of_both) == pytest.approx(2 * sum(chunks), rel=0.1)
    sources = [traces.source(30)] * 2
    made = Together(sources, True, 30, 0.02, MEMORY, [[alone] * 2], [both], [of_both])
    assert (made.texts, made.in_turn, made.cycles) == (2, 2 * alone, both)
    assert made.use == sum(of_both) / both / 4
    assert f"2 texts of 30 tokens, the core: {2 * alone} cycles" in summary_together(made)


def test_what_the_measurements_show(measured):
    """A lane for each head is always faster than the baseline, 16 on one head only from 500 on."""
    r = Results(measured)
    assert r.tokens == [64, 125, 250, 500, 1000] and r.lanes_per_head == [1, 4, 16]
    shared = {pair.core.tokens: pair for pair in r.pairs(lanes_per_head=16)}
    assert [n for n, pair in shared.items() if pair.speedup < 1] == [64, 125, 250]
    assert shared[500].bound < 1 and shared[500].core.use < 0.4
    alone = {pair.core.tokens: pair for pair in r.pairs(lanes_per_head=1)}
    assert all(pair.speedup > 1 for pair in alone.values())
    # Slower than a machine that reads each row once for a group of three query heads.
    assert 0.63 < alone[500].beside_shared < 0.67 and alone[1000].beside_shared < 0.9
    assert alone[500].own > 2 and alone[500].core.own_use > 0.9
    assert alone[500].core.head_cycles < 1300
    doubled = {pair.core.tokens: pair for pair in r.pairs(lanes_per_head=1, d=128)}
    assert doubled[1000].speedup > 2.4
    # Traffic: that of the algorithm in the same order, and a group's with buffers.
    assert bound(r) < 0.02
    reductions = alone[500].core.everything / np.array([alone[500].core.keys, 29076])
    assert reductions == pytest.approx([1.39, 1.39], abs=0.01)
    [buffered] = [p for p in r.pairs(lanes_per_head=1, buffer_tokens=512) if p.core.tokens == 500]
    assert buffered.core.everything / 3 / buffered.core.keys == pytest.approx(1.26, abs=0.01)
    # Chunks from the buffer take the lane's cycles, so it is no faster.
    assert buffered.core.cycles == pytest.approx(alone[500].core.cycles, rel=0.05)


def made(pruning: bool, *jobs: JobRun) -> Measured:
    sizes = {"lanes": 2, "lanes_per_head": 1, "entries": 64, "d": 64, "buffer_tokens": 0}
    job = {"heads": 2, "kv_heads": 2, "tokens": 10, "threshold": 1e-3, "memory": 50}
    return Measured(source="text", pruning=pruning, **sizes, **job, jobs=list(jobs))


def test_comparisons_by_hand():
    """Two lanes of one head of ten tokens: 30 chunks of K and 30 of V each."""
    base = JobRun(70, [66, 68], [38, 38], [60, 60], [30, 30])
    job = JobRun(40, [30, 38], [20, 30], [20, 33], [17, 24], 41, 12, [100, 200])
    pair = Pair(made(False, base), made(True, job))
    assert pair.speedup == 70 / 40 and pair.own == 134 / 68 and pair.bound == 60 / 40
    # 3 and 9 chunks of V: lanes are 27 and 21 cycles faster, the job as the slower one.
    assert pair.estimation() == 70 / 49 and pair.estimation(own=True) == 134 / (134 - 48)
    assert pair.waiting == 70 / 200
    # One query head of each kv head: 33 + 8 x 2, 49 twice, and 60 chunks.
    assert pair.beside_shared == (49 + 98 + 60) / 40
    assert pair.core.use == 53 / 80 and pair.core.own_use == 53 / 68
    assert pair.core.head_cycles == 25 and pair.core.model == (41, 12)


def test_keys_of_a_buffer_by_hand():
    """Two kv heads of two query heads in two groups of two lanes; tokens 0 to 3 are buffered."""
    p = dataclasses.replace(SMALL, tokens=8, buffer_tokens=4)
    read = np.array([[3, 1, 1, 1, 2], [1, 2, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 3, 3]])
    # Lane 0: tokens 0 and 2 once, token 4 for both heads.
    assert keys_of(p, read, 2) == [3 + 1 + 3, 2 + 1, 1 + 1 + 4, 1 + 3]
    assert sum(keys_of(dataclasses.replace(p, buffer_tokens=0), read, 2)) == read.sum()


def small_job(trace: Trace, tokens: int):
    """Two query heads on each of two kv heads, the first four elements, 6 bits."""
    heads = [0, 1, 3, 4]
    parts = trace.q[:, heads], trace.k[:, :2], trace.v[:, :2]
    q, k, v = (x[..., : SMALL.d] for x in parts)
    return job_of(Trace(q=q, k=k, v=v, scale=trace.scale), 0, tokens, SMALL.bits)


def test_small_cores(shipped_trace):
    """Two lanes a head: cycles of both cores, and what their memories read."""
    base, pruned = (Core(dataclasses.replace(SMALL, pruning=pruning)) for pruning in (False, True))
    for tokens in (1, 50):
        job = small_job(shipped_trace, tokens)
        every, some = (made.run(job, 0.02, MEMORY) for made in (base, pruned))
        assert sum(every.keys) == 3 * 4 * tokens and sum(every.chunks) == 2 * 3 * 4 * tokens
        assert all(keys <= chunks for keys, chunks in zip(some.keys, some.chunks, strict=True))
        assert sum(some.keys) <= sum(every.keys) and sum(some.chunks) <= sum(every.chunks)
        assert max(some.lane_cycles) <= some.cycles and max(some.decided_cycles) < some.cycles
        if tokens == 50:
            assert sum(some.chunks) < 0.9 * sum(every.chunks)
            read = some.model_keys + some.model_values
            assert sum(some.chunks) == pytest.approx(read, rel=0.2)


def test_a_wrong_output_has_no_speed(shipped_trace, monkeypatch):
    pruned = Core(SMALL)
    monkeypatch.setattr(pruned._harness, "run", lambda *_: FAILED)
    with pytest.raises(ToolError, match="50 tokens, 2 lanes a head: it hangs"):
        pruned.run(small_job(shipped_trace, 50), 0.02, MEMORY)


class FAILED:
    failure = "it hangs"


def test_the_cores_that_are_measured(shipped_trace):
    arguments = parser().parse_args(["pruning", "--tokens", "64", "500"])
    made = plans(shipped_trace, arguments)
    assert len(made) == 11
    assert {plan.parameters.tokens for plan in made} == {1024}
    sizes = {(p.lanes, p.lanes_per_head) for p in (plan.parameters for plan in made)}
    assert sizes == {(3, 1), (4, 4), (16, 16)}
    assert [p.parameters.d for p in made if p.doubled] == [128, 128]
    assert core(shipped_trace, 16, 1025).tokens == 2048


def test_joined_heads(shipped_trace):
    """A score is the sum of two heads' scores, of the query's own kv heads."""
    both = joined(shipped_trace)
    assert both.q.shape[1:] == (9, 512, 128) and both.k.shape[1:] == (3, 512, 128)
    q, k = (x[0].astype(float) for x in (shipped_trace.q, shipped_trace.k))
    for head, next_head in ((0, 3), (4, 7), (8, 2)):
        scores = k[head // 3] @ q[head, -1] + k[next_head // 3] @ q[next_head, -1]
        got = both.k[0, head // 3].astype(float) @ both.q[0, head, -1].astype(float)
        assert np.allclose(got, scores)
    assert both.scale == pytest.approx(shipped_trace.scale / 2**0.5)


def test_refusals(shipped_trace, tmp_path, capsys):
    arguments = parser().parse_args(["pruning", "--tokens", "600"])
    with pytest.raises(TraceError, match="--tokens must be at most 512, the trace's"):
        arguments.run(arguments)
    with pytest.raises(TraceError, match="must have the layers, heads, kv heads and d"):
        Traces(shipped_trace, joined(shipped_trace))
    with pytest.raises(TraceError, match="it holds no q, k and v"):
        Traces(Trace(x={"a": np.ones((2, 2), np.float32)}), None)
    for threshold in ("0", "1", "x"):
        with pytest.raises(SystemExit):
            parser().parse_args(["pruning", "--threshold", threshold])
        assert "must be a" in capsys.readouterr().err


@pytest.mark.campaign
def test_command(measured, tmp_path, capsys):
    """All cores, two lengths: as in the docs."""
    command = f"pruning --tokens 64 500 --json -o {tmp_path}"
    assert (arguments := parser().parse_args(command.split())).run(arguments) == 0
    got = json.loads(capsys.readouterr().out)
    expected = [dataclasses.asdict(m) for m in measured if m.tokens in (64, 500)]
    assert got == expected
    assert read(tmp_path / "topick_speed.json") == [m for m in measured if m.tokens in (64, 500)]
    assert (tmp_path / "topick_speed.md").exists() and (tmp_path / "topick_speed.svg").exists()


@pytest.mark.campaign
def test_the_command_writes_what_was_measured(measured, together, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(topick, "plans", lambda *_: [topick.Plan(SMALL, [1e-3])])
    monkeypatch.setattr(topick, "measure", lambda *_: measured)
    monkeypatch.setattr(topick, "measure_together", lambda *_: together)
    beside = str(shipped()[0])
    arguments = parser().parse_args(["pruning", "--json", "--beside", beside, "-o", str(tmp_path)])
    assert arguments.run(arguments) == 0
    assert json.loads(capsys.readouterr().out) == [dataclasses.asdict(m) for m in measured]
    for name in ("topick_speed.md", "topick_speed.json"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()
