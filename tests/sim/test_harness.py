"""The compiled harness runs stimuli, and fails when a component is broken."""

import dataclasses
import shutil

import numpy as np
import pytest

from sim.core import payload
from sim.core.stalls import PATTERNS, SHORTEST_STALL, Stall, Throttle, Turns, longest_stall
from sim.core.stimulus import Stimulus, compare
from sim.core.tools import ToolError
from sim.drivers.harness import verilated
from sim.drivers.harness.runner import Harness
from tests.support.sim.duts import (
    Crossing,
    FaultyBuffer,
    FaultyBufferParameters,
    Pairing,
    Slow,
    SlowParameters,
    WidthParameters,
    design,
)

BEATS = 100


def buffer_job(beats: int = BEATS) -> Stimulus:
    """Beats with their index; transaction 3 k .. 3 k + 2 share number k."""
    value = np.random.default_rng(1).integers(0, 1 << 40, beats)
    packed = payload.pack(FaultyBuffer.LAYOUT, {"index": np.arange(beats), "value": value})
    return Stimulus(
        {"i": packed}, {"o": packed}, {"o": np.arange(beats) // 3}, beats // 3, beats + 1
    )


def play_faulty(fault: str, stall: str = "none"):
    subject = design(FaultyBuffer, FaultyBufferParameters(fault))
    stimulus = buffer_job()
    outcome = Harness(subject).run(stimulus, PATTERNS[stall], seed=1)
    found = compare(stimulus, outcome.outputs, subject.outputs, outcome.cycles_of)
    return outcome, found


@pytest.mark.parametrize("stall", PATTERNS)
def test_sound_component_passes(stall):
    outcome, found = play_faulty("none", stall)
    assert outcome.failure is None and not found
    if stall == "none":
        assert outcome.cycles == buffer_job().cycles
    else:
        assert outcome.cycles > buffer_job().cycles


@pytest.mark.parametrize(
    "fault, what", [("withdraw", "valid was withdrawn"), ("change", "the payload changed")]
)
def test_broken_stream_rule(fault, what):
    outcome, _ = play_faulty(fault, "random")
    cycle = int(outcome.failure.split()[-7])
    assert outcome.failure == (
        f"stream o: {what} in cycle {cycle} while the consumer was not ready"
    )
    # Beat 20 is the first that can be hit, and everything before it arrived.
    assert len(outcome.outputs["o"]) >= 20
    assert cycle == outcome.simulated - 1


@pytest.mark.parametrize("fault", ["withdraw", "change"])
def test_stream_rules_need_stalls_to_be_broken(fault):
    outcome, found = play_faulty(fault, "none")
    assert outcome.failure is None and not found


def test_lost_beat():
    outcome, found = play_faulty("lose")
    assert outcome.failure is not None and outcome.failure.startswith("no transfer for ")
    assert len(outcome.outputs["o"]) == BEATS - 1
    first, last = found[0], found[-1]
    assert (first.stream, first.transaction, first.beat, first.field) == ("o", 6, 20, "index")
    # Beat 20 never left the buffer, so beat 21 takes its place two cycles after beat 19.
    assert (first.expected, first.got, first.cycle) == (20, 21, 22)
    assert (last.transaction, last.beat, last.expected, last.got) == (33, 99, "a beat", "nothing")


def test_repeated_beat():
    outcome, found = play_faulty("repeat")
    assert outcome.failure is None
    assert len(outcome.outputs["o"]) == BEATS + 1
    first, last = found[0], found[-1]
    assert (first.transaction, first.beat, first.field) == (7, 21, "index")
    assert (first.expected, first.got, first.cycle) == (21, 20, 22)
    assert (last.beat, last.expected, last.got) == (BEATS, "nothing", "a beat")


def test_extra_beat_after_the_end():
    outcome, found = play_faulty("extra")
    assert outcome.failure is None
    assert outcome.cycles == BEATS + 1  # counted to the last beat that was due
    (only,) = found
    assert (only.beat, only.field, only.expected, only.got) == (BEATS, "beat", "nothing", "a beat")


def test_a_beat_that_must_wait_after_the_run():
    subject, stimulus = design(FaultyBuffer, FaultyBufferParameters("none")), buffer_job()
    stimulus.strays = {"i": stimulus.inputs["i"][:1]}
    outcome = Harness(subject).run(stimulus, PATTERNS["none"], seed=1)
    assert outcome.failure == "stream i: a beat that must wait is accepted after the run"
    assert not compare(stimulus, outcome.outputs, subject.outputs, outcome.cycles_of)


def test_hang():
    outcome, found = play_faulty("hang")
    timeout_cycles = design(FaultyBuffer, FaultyBufferParameters("hang")).timeout_cycles
    # The last transfer is beat 19 leaving in cycle 20.
    assert outcome.cycles == 21
    assert (
        outcome.failure
        == f"no transfer for {timeout_cycles} cycles before cycle {21 + timeout_cycles}"
    )
    (only,) = found
    assert (only.beat, only.expected, only.got) == (20, "a beat", "nothing")


def test_wrong_data():
    outcome, found = play_faulty("corrupt")
    assert outcome.failure is None
    (only,) = found
    want = int(payload.unpack(FaultyBuffer.LAYOUT, buffer_job().outputs["o"])["value"][20])
    assert (only.stream, only.transaction, only.beat, only.field) == ("o", 6, 20, "value")
    assert (only.expected, only.got, only.cycle) == (want, want ^ 1 << 39, 21)
    assert str(only) == (
        f"transaction 6, stream o, beat 20, field value, cycle 21: "
        f"expected {want}, got {want ^ 1 << 39}"
    )


def test_payload_without_valid_is_wrong():
    outcome, found = play_faulty("stale")
    assert outcome.failure is None
    # Only the last beat leaves while no other is offered; its payload is inverted then.
    (only,) = found
    assert (only.beat, only.field, only.got) == (BEATS - 1, "index", (BEATS - 1) ^ 0xFFF)


@pytest.mark.parametrize("width", [1, 33, 64, 65, 96, 257])
def test_payloads_of_any_width_on_several_streams(width):
    subject = design(Crossing, WidthParameters(width))
    mask = payload.from_ints([(1 << width) - 1], subject.inputs["i__0"])
    random = np.random.default_rng(width)
    # The streams have different lengths, so that one ends while the other goes on.
    sent = [
        random.integers(0, 1 << 32, (beats, mask.shape[1]), np.uint32) & mask for beats in (60, 90)
    ]
    stimulus = Stimulus(
        inputs={"i__0": sent[0], "i__1": sent[1]},
        outputs={"o__0": ~sent[1] & mask, "o__1": ~sent[0] & mask},
        transaction_of={"o__0": np.arange(90), "o__1": np.arange(60)},
        transactions=150,
        cycles=91,
    )
    compiled = Harness(subject)
    for stall in PATTERNS:
        compiled.reset()
        outcome = compiled.run(stimulus, PATTERNS[stall], seed=width)
        assert outcome.failure is None
        assert not compare(stimulus, outcome.outputs, subject.outputs, outcome.cycles_of)
        assert stall != "none" or outcome.cycles == stimulus.cycles


def test_combinational_design():
    subject = design(Pairing, WidthParameters(20))
    assert not subject.clocked
    first, second = np.random.default_rng(1).integers(0, 1 << 20, (2, 50), np.uint32)
    pairs = payload.pack(subject.outputs["o"], {"first": first, "second": second})
    stimulus = Stimulus(
        inputs={"first": first[:, None], "second": second[:, None]},
        outputs={"o": pairs},
        transaction_of={"o": np.arange(50)},
        transactions=50,
        cycles=50,
    )
    for stall in PATTERNS:
        outcome = Harness(subject).run(stimulus, PATTERNS[stall], seed=3)
        assert outcome.failure is None
        assert not compare(stimulus, outcome.outputs, subject.outputs, outcome.cycles_of)
        assert stall != "none" or outcome.cycles == 50


def test_same_seed_same_run():
    subject = design(FaultyBuffer, FaultyBufferParameters())
    compiled, runs = Harness(subject), []
    for seed in (1, 1, 2):
        compiled.reset()
        runs.append(list(compiled.run(buffer_job(), PATTERNS["random"], seed).cycles_of["o"]))
    assert runs[0] == runs[1] != runs[2]


def runs_of(active: np.ndarray) -> tuple[float, float]:
    """Mean length of active and of stalled runs, the cut ones at the ends left out."""
    edges = np.flatnonzero(np.diff(active)) + 1
    lengths, first_is_active = np.diff(edges), bool(active[edges[0]])
    of = {first_is_active: lengths[0::2].mean(), (not first_is_active): lengths[1::2].mean()}
    return of[True], of[False]


@pytest.mark.parametrize("side", ["valid", "ready"])
@pytest.mark.parametrize("duty, burst", [(0.7, 1), (0.5, 12), (0.8, 12), (0.25, 3)])
def test_stalls_have_their_duty_and_burst_length(side, duty, burst):
    stall = Stall(**{"valid": 1, "ready": 1, "burst": burst, side: duty})
    beats = 200_000
    same = {"o": np.zeros((beats, 2), np.uint32)}
    stimulus = Stimulus({"i": same["o"]}, same, {"o": np.arange(beats)}, beats, beats + 1)
    outcome = Harness(design(FaultyBuffer, FaultyBufferParameters())).run(stimulus, stall, seed=5)
    assert outcome.failure is None
    active = np.zeros(outcome.cycles, bool)
    active[outcome.cycles_of["o"]] = True
    check_hesitation(active, duty, stall.chances(duty, "5i" if side == "valid" else "5o"))


@pytest.mark.parametrize("duty, burst", [(0.7, 1), (0.5, 12), (0.8, 12), (0.25, 3)])
def test_gate_has_its_duty_and_burst_length(duty, burst):
    chances = Stall(1, 1, burst).chances(duty, "1i")
    gate = Throttle(chances, "seed")
    check_hesitation(np.array([gate.step() for _ in range(200_000)]), duty, chances)


def check_hesitation(active: np.ndarray, duty: float, chances: tuple[float, float]) -> None:
    assert active.mean() == pytest.approx(duty, rel=0.05)
    running, stalled = runs_of(active)
    assert running == pytest.approx(1 / chances[0], rel=0.1)
    assert stalled == pytest.approx(1 / chances[1], rel=0.1)


@pytest.mark.parametrize("duty", [0.2, 0.5, 0.8])
def test_streams_stall_for_different_lengths(duty):
    stall = Stall(1, 1, burst=12)
    found = {stall.chances(duty, f"{seed}i") for seed in range(50)}
    wanted = [((1 - duty) / burst, duty / burst) for burst in (4, 12, 36)]
    assert sorted(found, reverse=True) == [pytest.approx(pair) for pair in wanted]
    assert len({Stall(1, 1).chances(duty, f"{seed}i") for seed in range(50)}) == 1


def test_long_stalls_take_turns():
    """Never two streams at once, each stream sometimes, never longer than the longest."""
    turns = Turns(500, "seed")
    streams = [turns.join() for _ in range(3)]
    found = np.array([[turns.stalls(s, cycle) for s in streams] for cycle in range(100_000)])
    assert found.sum(axis=1).max() == 1
    for stalled in found.T:
        _, lengths = runs_of(~stalled)
        assert SHORTEST_STALL <= lengths <= 500 and 0.1 < stalled.mean() < 0.4


def test_the_harness_stalls_one_stream_for_long():
    """Gaps between beats are stalls of source or sink, none so long that it looks like a hang."""
    subject = design(FaultyBuffer, FaultyBufferParameters())
    beats = 20_000
    same = {"o": np.zeros((beats, 2), np.uint32)}
    stimulus = Stimulus({"i": same["o"]}, same, {"o": np.arange(beats)}, beats, beats + 1)
    outcome = Harness(subject).run(stimulus, PATTERNS["long"], seed=5)
    assert outcome.failure is None
    gaps = np.diff(outcome.cycles_of["o"])
    longest = longest_stall(subject.timeout_cycles)
    assert gaps[gaps > 1].min() >= SHORTEST_STALL and longest / 2 < gaps.max() <= longest + 1
    assert 3 * beats < outcome.cycles < 6 * beats


def test_a_stream_of_few_beats_stalls_as_often():
    """Its source stalls in half of all cycles, and not only in those after a beat."""
    beats, interval = 2000, SlowParameters().interval
    packed = np.arange(beats, dtype=np.uint32)[:, None] & 0xFF
    stimulus = Stimulus({"i": packed}, {"o": packed}, {"o": np.arange(beats)}, beats, 0)
    subject = design(Slow, SlowParameters())
    stall = Stall(valid=0.5, ready=1, burst=12)
    assert stall.chances(0.5, "1i") == (0.5 / 36, 0.5 / 36)
    outcome = Harness(subject).run(stimulus, stall, seed=1)
    assert outcome.failure is None
    # Were it stalled after beats alone, one in 72 would be late, by 72 cycles.
    assert outcome.cycles > 1.4 * beats * interval


@pytest.fixture
def compilations(monkeypatch, tmp_path):
    """The compiler runs from here on, in a cache that holds no design."""
    headers = verilated._precompiled().parent
    shutil.copytree(headers, tmp_path / "compiled" / headers.name)
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path))
    compiled, run = [], verilated._run

    def counted(command, folder, subject):
        compiled.append(f"{command[0].rsplit('/')[-1]} {subject}")
        run(command, folder, subject)

    monkeypatch.setattr(verilated, "_run", counted)
    return compiled


def test_compiled_once(compilations):
    subject = design(Pairing, WidthParameters(4))
    once = [f"{tool} {subject.module}" for tool in ("verilator", "g++", "g++")]
    Harness(subject)
    assert compilations == once
    Harness(subject)
    Harness(dataclasses.replace(subject))
    assert compilations == once
    Harness(dataclasses.replace(subject, verilog=subject.verilog + "\n// another\n"))
    assert compilations == once * 2


def test_verilog_that_does_not_compile(compilations, tmp_path):
    subject = design(Pairing, WidthParameters(4))
    broken = dataclasses.replace(subject, verilog=subject.verilog.replace("endmodule", ""))
    with pytest.raises(
        ToolError, match="could not compile tests_pairing_[0-9a-f]{8}; its output is in"
    ):
        Harness(broken)
    assert "syntax error" in (tmp_path / "compiled" / f"{subject.module}.log").read_text()
    assert not list(tmp_path.glob("compiled/.building*"))
