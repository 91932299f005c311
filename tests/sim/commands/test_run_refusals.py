"""``python -m sim run`` refuses what it cannot do, with one sentence on standard error."""

import gc
import os
import warnings
from pathlib import Path

import numpy as np

from hw.emit.export import to_rtlil
from hw.stream.skid_buffer import SkidBuffer, SkidBufferParameters
from sim.drivers import run as runs
from tests.support.sim.commands import READER, SKID, one_sentence


def test_memory_settings_are_checked(run):
    for memory, sentence in [
        ("order=some", "order must be in or any, not 'some'"),
        ("latency=3..x", "latency must be a whole number, not 'x'"),
        ("latency=3..2", "latency must be the shortest and the longest number of cycles"),
        ("speed=3", "a memory's setting must be one of latency, order, interval, seed, each as"),
        ("latency", "a memory's setting must be one of latency, order, interval, seed, each as"),
    ]:
        assert one_sentence(run(f"{READER} --memory {memory}")[2]).startswith(sentence)
    assert one_sentence(run(f"{SKID} --memory latency=3")[2]) == (
        "stream.skid_buffer has no memory, so it takes no --memory"
    )


def test_one_file_is_for_one_block(run, tmp_path):
    for option in ("--verilog x.v", "--waves x.fst", "--memory latency=2"):
        assert "need one block, not 'all'" in one_sentence(run(f"run all {option}")[2])


def test_outputs_are_found_unwritable_before_the_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "run", None)
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path, file / "w.fst", "/proc/w.fst"):
        assert one_sentence(run(f"{SKID} --waves {path}")[2]).startswith(f"{path} ")
    assert os.listdir(tmp_path) == ["file"]


def test_more_vectors_than_memory(run, monkeypatch):
    status, _, err = run("run stream.queue --vectors 1000000000000")
    assert status == 2 and "--vectors: must be at most 10000000, not 1000000000000" in err

    def out_of_memory(*_, **__):
        raise MemoryError

    monkeypatch.setattr(runs, "stimuli_of", out_of_memory)
    assert one_sentence(run(SKID)[2]).startswith("out of memory: try fewer vectors")


def test_a_build_folder_with_spaces_is_one_sentence(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path / "my build"))
    for command in ("--help", "run --help", "report --help"):
        assert run(command)[0] == 0
    assert "has spaces" in one_sentence(run(SKID)[2])


def test_an_interrupt_is_one_line(run, monkeypatch):
    """Without warnings of unused components."""
    kept = []
    # Amaranth warns only once something was elaborated.
    to_rtlil(SkidBuffer(SkidBufferParameters(width=8)), "top")

    def interrupted(*_, **__):
        kept.append(SkidBuffer(SkidBufferParameters(width=8)))
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "generate", interrupted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        status, out, err = run(SKID)
        kept.clear()
        gc.collect()
    assert status == 130 and out == "" and err.splitlines()[-1] == "error: interrupted"
    assert not caught


def test_a_negative_seed_is_no_traceback(run):
    status, out, err = run(f"{SKID} --driver harness --seed -1")
    assert status == 2 and "--seed: must be at least 0, not -1" in err


def bad_traces(folder: Path) -> dict[Path, str]:
    values = np.ones((1, 2, 3, 4), np.float32)
    whole = {"q": values, "k": values, "v": values, "scale": np.float32(0.5)}
    nan = values.copy()
    nan[0, 1, 2, 3] = np.nan
    cases = {
        "shape": ({**whole, "q": values[0]}, "q must have shape [layer, head, token, d]"),
        "heads": ({**whole, "q": np.ones((1, 3, 3, 4), np.float32)}, "must be a multiple"),
        "nan": ({**whole, "k": nan}, "k holds 1 values that are not finite"),
        "type": ({"x/a": np.ones((2, 2), int)}, "x/a must be float16, float32 or float64"),
        "nothing": ({}, "it holds no data"),
        "half": ({"q": values}, "q, k, v and scale come together"),
        "name": ({"activations": values}, "unknown array 'activations'"),
    }
    made = {}
    for name, (arrays, sentence) in cases.items():
        path = folder / f"{name}.npz"
        np.savez(path, **arrays)
        made[path] = sentence
    (folder / "text.npz").write_text("not a trace")
    return made | {
        folder / "text.npz": "it is not an .npz file",
        folder / "none.npz": "there is no such file",
        folder: "it is not a file",
    }


def test_bad_traces_are_one_sentence(run, tmp_path):
    for path, sentence in bad_traces(tmp_path).items():
        status, out, err = run(f"{SKID} --driver harness --trace {path}")
        assert status == 2 and out == ""
        assert one_sentence(err).startswith(f"trace {path}: ") and sentence in err


def test_a_missing_icarus_is_one_sentence(run, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = run(f"{SKID} --simulator icarus")
    assert status == 1 and out == ""
    assert one_sentence(err) == (
        "Icarus Verilog is not installed; install it with: apt-get install iverilog"
    )


def test_a_missing_compiler_is_one_sentence(run, monkeypatch, tmp_path):
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path / "build"))
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = run(f"{SKID} --driver harness")
    assert status == 1 and out == ""
    assert one_sentence(err) == "Verilator needs g++: install it with apt-get install g++"
