"""``python -m sim run`` on real blocks, with its options, and on broken Verilog."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from golden import trace as traces
from hw import catalogue
from hw.catalogue import blocks, find
from hw.emit.export import export
from hw.stream.skid_buffer import SkidBufferParameters
from sim.core.design import from_file, generate
from sim.core.memory import Memory, MemoryTiming, described, timings_of
from sim.core.result import RunResult, command_line
from sim.core.stalls import PATTERNS
from sim.core.stimulus import Stimulus
from sim.core.tools import DRIVERS, ROOT, ToolError
from sim.drivers import run as runs
from sim.drivers.cocotb.runner import SIMULATORS
from tests.support.sim.commands import READER, SKID, one_sentence


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_json_for_programs(run, simulator):
    status, out, err = run(f"{SKID} --simulator {simulator} --seed 7 --json")
    assert status == 0 and err == ""
    result = json.loads(out)
    assert {"block", "preset", "simulator", "seed", "transactions", "mismatches", "cycles"} < set(
        result
    )
    assert result["block"] == "stream.skid_buffer" and result["preset"] == "small"
    assert result["simulator"] == simulator and result["seed"] == 7
    # Forty real beats and forty random ones, each run a cycle longer than its beats.
    assert result["transactions"] == 80 and result["mismatches"] == 0
    assert result["cycles"] == result["predicted"] == 82 < result["simulated"]
    assert result["wall_s"] > 0 and result["passed"] is True
    assert result["first_mismatch"] is None and result["failures"] == []
    assert result["configuration"] == "small" and result["parameters"] == {"width": 8}
    assert result["trace"] == traces.shipped()[0].name and result["vectors"] == 40
    assert result["memory"] is None and result["reproduce"] is None
    assert len(result["notes"]) == 2


def test_text_for_people(run):
    status, out, err = run(f"{SKID} --driver harness")
    assert status == 0 and "stream.skid_buffer (small) in verilator" in err
    *notes, verdict = out.splitlines()
    assert notes[0] == "k is read as FP16 bits, cut into payloads of 8 bits."
    assert re.fullmatch(
        r"stream.skid_buffer small, verilator, stall none, seed 1: 80 transactions, 0 mismatches, "
        r"82 cycles \(formula: 82\), [\d.]+ s: pass",
        verdict,
    )


def test_settings_are_part_of_the_configuration_s_name(run):
    command = f"{SKID} --driver harness --set width=9"
    status, out, err = run(command)
    assert status == 0 and "stream.skid_buffer (small with width=9) in verilator" in err
    assert "stream.skid_buffer small with width=9, verilator" in out
    result = json.loads(run(f"{command} --json")[1])
    assert result["configuration"] == "small with width=9"
    assert result["parameters"] == {"width": 9}


def test_a_failure_says_how_to_repeat_it(run, tmp_path):
    path = skid_buffer_with(tmp_path, r"i__ready <= [^;]*;", "i__ready <= 1'h1;")
    command = f"run stream.skid_buffer --preset small --driver harness --seed 3 --verilog {path}"
    status, out, _ = run(command)
    line = out.splitlines()[-1]
    assert status == 1 and line.startswith("  to repeat: python -m sim run stream.skid_buffer ")
    again = line.partition("-m sim ")[2]
    assert "--stall random" in again and "--seed 3" in again and f"--verilog {path}" in again
    first = json.loads(run(f"{command} --json")[1])
    alone = json.loads(run(f"{again} --json")[1])
    assert first["first_mismatch"] == f"stall random: {alone['first_mismatch']}"
    assert f"python -m sim {again}" == first["reproduce"] == alone["reproduce"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_memory_timing(run, driver):
    command = f"{READER} --driver {driver} --stall none --json"
    fast, slow = (json.loads(run(f"{command}{more}")[1]) for more in ("", " --memory latency=40"))
    assert fast["passed"] and slow["passed"]
    assert fast["memory"] == {"none": "latency=1,order=in,interval=1,seed=1"}
    assert slow["memory"] == {"none": "latency=40,order=in,interval=1,seed=1"}
    assert fast["predicted"] == fast["cycles"] < slow["cycles"] and slow["predicted"] is None


def test_each_stall_pattern_has_its_memory_timing(run):
    status, out, _ = run(f"{READER} --driver harness --seed 5")
    assert status == 0
    assert "Memory under stall none: latency=1,order=in,interval=1,seed=5." in out
    assert "Memory under stall random: latency=1..20,order=any,interval=1,seed=5." in out
    assert "Memory under stall bursts: latency=2..40,order=in,interval=2,seed=5." in out


def test_where_the_order_is_forced_it_is_not_called_any():
    plain = Memory(np.zeros((1, 1), np.uint32), "request", "response", tag=None)
    tagged = dataclasses.replace(plain, tag="tag")
    timing = MemoryTiming((1, 9), reorder=True)
    forced, free = (f"latency=1..9,order={order},interval=1,seed=0" for order in ("in", "any"))
    assert described(timings_of({"a": plain}, timing)) == forced
    assert described(timings_of({"a": tagged, "b": tagged}, timing)) == free
    both = described(timings_of({"a": plain, "b": tagged}, timing))
    assert both == f"a {forced}; b {free}"


def test_all_blocks_in_one_list(run, monkeypatch):
    few = [block for block in blocks() if block.folder == "stream"]
    last = find("kllm.orizuru")
    # One has no preset of that name.
    listed = (*few, find("arith.float_max"), last)
    monkeypatch.setattr(catalogue, "blocks", lambda: listed)
    status, out, _ = run("run all --preset small --driver harness --vectors 6 --json")
    results = json.loads(out)
    assert status == 0 and [r["block"] for r in results] == [b.name for b in (*few, last)]
    assert all(r["passed"] and r["transactions"] == 48 for r in results)


def test_every_stall_pattern_is_run_unless_one_is_named(run):
    status, out, _ = run("run stream.skid_buffer --preset small --driver harness --json")
    result = json.loads(out)
    assert status == 0 and result["stall"] == "all"
    # Patterns, real and random data, the testbench's default.
    assert result["transactions"] == len(PATTERNS) * 2 * 256
    assert result["cycles"] == result["predicted"] == 2 * 257 < result["simulated"]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("stall", ["random", "bursts"])
def test_stalls(run, driver, stall):
    status, out, _ = run(f"{SKID} --driver {driver} --stall {stall} --json")
    result = json.loads(out)
    assert status == 0 and result["stall"] == stall
    assert result["predicted"] is None and result["cycles"] > 82


def test_the_seed_decides_about_stalls(run):
    def cycles(seed):
        command = f"{SKID} --driver harness --stall random --seed {seed} --json"
        return json.loads(run(command)[1])["cycles"]

    assert cycles(1) == cycles(1)
    assert len({cycles(seed) for seed in range(5)}) > 1


def skid_buffer_with(tmp_path: Path, old: str, new: str) -> Path:
    block = find("stream.skid_buffer")
    verilog = export(block, block.parameters_class.preset("small")).verilog
    changed = re.sub(old, new, verilog, count=1)
    assert changed != verilog, "the generated text changed: adapt the fault"
    path = tmp_path / "mine.v"
    path.write_text(changed)
    return path


def test_my_own_verilog_passes(run, tmp_path):
    path = skid_buffer_with(tmp_path, r"\A", "// by hand\n")
    status, out, _ = run(f"{SKID} --driver harness --verilog {path}")
    assert status == 0 and "pass" in out


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_flipped_payload_bit(run, tmp_path, simulator):
    path = skid_buffer_with(tmp_path, r"(o__payload <= \w+);", r"\1 ^ 8'h10;")
    status, out, _ = run(f"{SKID} --simulator {simulator} --verilog {path}")
    assert status == 1
    verdict, mismatch, _ = out.splitlines()[-3:]
    assert re.search(r": 80 transactions, 80 mismatches, .*: FAIL$", verdict)
    shown = re.fullmatch(
        r"  transaction 0, stream o, beat 0, field payload, cycle 1: expected (\d+), got (\d+)",
        mismatch,
    )
    assert int(shown[1]) ^ int(shown[2]) == 0x10


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_output_that_never_comes(run, tmp_path, driver):
    path = skid_buffer_with(tmp_path, r"o__valid <= [^;]*;", "o__valid <= 1'h0;")
    status, out, _ = run(f"{SKID} --driver {driver} --verilog {path} --json")
    result = json.loads(out)
    # Neither the stimulus of real data nor that of random data has any output.
    assert status == 1 and result["mismatches"] == 2
    assert result["first_mismatch"] == (
        "transaction 0, stream o, beat 0, field beat: expected a beat, got nothing"
    )
    assert len(result["failures"]) == 2
    for failure in result["failures"]:
        assert re.fullmatch(r"no transfer for \d+ cycles before cycle \d+", failure)


@pytest.mark.parametrize("driver", DRIVERS)
def test_an_input_always_ready_loses_beats_once_something_stalls(run, tmp_path, driver):
    path = skid_buffer_with(tmp_path, r"i__ready <= [^;]*;", "i__ready <= 1'h1;")
    command = f"{SKID} --driver {driver} --verilog {path} --json"
    if driver == "harness":
        assert run(command)[0] == 0, "without stalls the fault cannot be seen"
    status, out, _ = run(f"{command} --stall random")
    result = json.loads(out)
    assert status == 1 and result["mismatches"] > 0
    assert re.match(r"transaction \d+, stream o, beat \d+, field", result["first_mismatch"])


def test_a_dropped_ready_term_is_a_mismatch(run, tmp_path):
    # The beat just taken stays in the register, so it is output again.
    path = skid_buffer_with(tmp_path, r"if \(~o__valid \| o__ready\)", "if (~o__valid)")
    status, out, _ = run(f"{SKID} --driver harness --verilog {path} --json")
    result = json.loads(out)
    assert status == 1 and not result["passed"]
    assert result["first_mismatch"].startswith(
        "transaction 1, stream o, beat 1, field payload, cycle 2: expected "
    )


def test_a_cycle_too_many_is_a_failure(run, tmp_path):
    # Not ready after reset, and so every stimulus starts a cycle late; every beat is right.
    path = skid_buffer_with(
        tmp_path,
        r"(if \(rst\) begin\s+(?:\w+ <= [^;]+;\s+)*i__ready <= )1'h1;",
        r"\g<1>1'h0;",
    )
    status, out, _ = run(f"{SKID} --driver harness --verilog {path} --json")
    result = json.loads(out)
    assert status == 1 and result["mismatches"] == 0 and result["first_mismatch"] is None
    assert result["cycles"] == result["predicted"] + 2
    assert result["failures"] == ["took 42 cycles where the formula says 41"] * 2


@pytest.mark.parametrize(
    "how, loop, failures",
    [
        (
            "--simulator icarus",
            "always @(posedge clk) while (o__valid) skid = 8'h00;",
            ["no cycle was simulated for 1 s: is there an endless loop?"] * 2,
        ),
        (
            "--driver harness",
            'wire a; assign a = ~(a & i__valid); always @(posedge clk) if (!a) $write("");',
            [
                "the harness: it was ended with status 1: %Error-DIDNOTCONVERGE",
                "not run, as the harness did not end before",
            ],
        ),
    ],
)
def test_an_endless_loop_is_a_failure(run, tmp_path, how, loop, failures):
    path = skid_buffer_with(tmp_path, "endmodule", f"{loop}\nendmodule")
    status, out, _ = run(f"{SKID} {how} --verilog {path} --timeout 1 --json")
    result = json.loads(out)
    assert status == 1 and result["mismatches"] == 0
    assert [said.partition(": design.v")[0] for said in result["failures"]] == failures


def test_files_that_are_no_such_design(run, tmp_path):
    name = "stream_skid_buffer_small"
    other = tmp_path / "other.v"
    other.write_text(f"// module {name}_too\nmodule {name}_too(); endmodule\n")
    assert one_sentence(run(f"{SKID} --verilog {other}")[2]) == (
        f"{other} must hold a module named {name}"
    )
    status, out, err = run(f"{SKID} --verilog {tmp_path}/no.v")
    assert status == 2 and out == "" and f"{tmp_path}/no.v" in one_sentence(err)
    assert str(tmp_path) in one_sentence(run(f"{SKID} --verilog {tmp_path}")[2])
    binary = tmp_path / "binary.v"
    binary.write_bytes(b"\xff\xfe module")
    status, _, err = run(f"{SKID} --verilog {binary}")
    assert status == 2 and str(binary) in one_sentence(err)


@pytest.mark.parametrize("driver", DRIVERS)
def test_verilog_that_does_not_compile(run, tmp_path, driver, monkeypatch):
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path / "build"))
    broken = tmp_path / "broken.v"
    text = generate(find("stream.skid_buffer"), SkidBufferParameters(width=8)).verilog
    broken.write_text(text.replace("endmodule", "  assign = ;\nendmodule"))
    status, out, err = run(f"{SKID} --driver {driver} --verilog {broken}")
    assert status == 1 and out == ""
    _, progress, error = err.splitlines()
    assert progress.startswith("compiling stream_skid_buffer_small for ")
    log = re.fullmatch(r".* could not compile stream_skid_.*; its output is in (.*)", error)
    assert "syntax error" in Path(log[1]).read_text()


def test_a_command_imports_only_what_it_needs():
    """The docs state the time of ``--help``; it depends on these imports."""
    script = (
        "import sys; from sim.__main__ import parser; parser('run'); parser('');"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    names = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    heavy = {"numpy", "amaranth", "cocotb", "cocotb_tools", "jinja2", "matplotlib", "rich", "tqdm"}
    assert "sim" in names.stdout.split() and not heavy & set(names.stdout.split())


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_waves(run, tmp_path, simulator):
    if simulator == "verilator" and not Path("/usr/include/lz4.h").exists():
        status, _, err = run(f"{SKID} --waves {tmp_path}/w.fst")
        assert status == 1 and "liblz4-dev" in one_sentence(err)
        assert os.listdir(tmp_path) == []
        return
    target = tmp_path / "new" / "w.fst"
    # A run without waves comes first: its compiled simulation has no waves to give.
    assert run(f"{SKID} --simulator {simulator}")[0] == 0
    status, out, err = run(f"{SKID} --simulator {simulator} --waves {target}")
    assert status == 0, out + err
    assert os.listdir(target.parent) == ["w.fst"]
    # An FST file begins with a header block of 329 bytes.
    assert target.read_bytes()[:9] == b"\0" + (329).to_bytes(8, "big")
    assert run(f"{SKID} --simulator {simulator}")[0] == 0


def test_without_a_transaction_nothing_is_proved(run, monkeypatch):
    def nothing(block, parameters, trace, vectors, seed):
        none = np.zeros((0, 1), np.uint32)
        return [Stimulus({"i": none}, {"o": none}, {"o": np.zeros(0, int)}, 0, 1)] * 2

    monkeypatch.setattr(runs, "stimuli_of", nothing)
    status, out, _ = run(f"{SKID} --driver harness --json")
    result = json.loads(out)
    assert result["transactions"] == 0 and result["mismatches"] == 0
    assert status == 1 and not result["passed"]


def test_the_command_that_repeats_a_failure():
    result = RunResult("a.b", "small", "icarus", "cocotb", 3, "all", vectors=7)
    timing = MemoryTiming((2, 9), seed=3)
    assert command_line(result, ["k=2"], "random", Path("my t.npz"), timing, Path("n.v"), True) == (
        "python -m sim run a.b --preset small --set k=2 --simulator icarus --driver cocotb "
        "--vectors 7 --seed 3 --stall random --trace 'my t.npz' "
        "--memory latency=2..9,order=in,interval=1,seed=3 --verilog n.v --trust"
    )


def test_what_counts_as_passed():
    sound = RunResult("a.b", "small", "verilator", "harness", 1, "none", transactions=1)
    assert sound.passed
    for changes in ({"transactions": 0}, {"mismatches": 1}, {"failures": ["it hung"]}):
        assert not dataclasses.replace(sound, **changes).passed


@pytest.mark.parametrize(
    "name", ["stream.queue", "arith.exp", "kllm.orizuru", "attention.pe_array"]
)
def test_a_design_from_a_file_is_the_generated_one(name, tmp_path):
    block = find(name)
    parameters = block.parameters_class.preset("first")
    generated = generate(block, parameters)
    (path, _) = export(block, parameters).write(tmp_path)
    found = from_file(block, parameters, path)
    assert not found.systemverilog and generated.systemverilog
    words = [re.sub(r"//.*|/\*.*?\*/", "", d.verilog).split() for d in (found, generated)]
    assert words[0] == words[1]
    assert dataclasses.replace(generated, verilog=found.verilog, systemverilog=False) == found
    assert from_file(block, parameters, path, trust=True) == generated
    with pytest.raises(ToolError, match="must hold a module named"):
        from_file(block, parameters, path.with_suffix(".json"))


def test_help(run):
    status, out, _ = run("--help")
    assert status == 0 and "run " in out and "report" in out and "lint" in out
    status, out, _ = run("run --help")
    for option in ("--preset", "--simulator", "--stall", "--verilog FILE.v", "--waves FILE.fst"):
        assert status == 0 and option in out
