"""``python -m sim dram``, and a DRAM behind a block by ``sim run --memory``."""

import json

import pytest

from sim.commands import dram_cores
from sim.core.dram.standards import STANDARDS
from tests.support.sim.commands import READER, one_sentence


def test_json_has_the_figures(run, tmp_path):
    file = tmp_path / "requests"
    file.write_text("".join(f"R {64 * line:x}\n" for line in range(96)))
    status, out, _ = run(f"dram --standard hbm2 --addresses {file} --window 64 --json")
    found = json.loads(out)
    assert status == 0 and found["bytes"] == 96 * 64 and found["tck_ns"] == 1.0
    # Three channels, a row of 32 lines each; the third begins as soon as the window has it.
    assert found["activations"] == 3 and found["row_hits"] == 93
    assert found["cycles"] == 14 + 14 + 32 * 2
    assert found["achieved"] == round(96 * 2 / 8 / found["cycles"], 4)
    assert set(found["energy_nj"]) == {"activation", "read", "write", "refresh", "background"}


@pytest.mark.parametrize("standard", STANDARDS)
def test_a_table_for_people(run, standard):
    status, out, _ = run(f"dram --standard {standard} --pattern runs:4 --count 64 --hash")
    assert status == 0 and "row hits" in out and f"on {standard}" in out


@pytest.mark.parametrize(
    "options, sentence",
    [
        ("--pattern random", "give either --standard or --cores"),
        ("--standard hbm2", "give either --addresses or --pattern"),
        ("--standard hbm2 --pattern random --addresses x", "give either --addresses or --pattern"),
        ("--standard hbm --pattern random", "a memory's standard must be one of hbm2, "),
        ("--standard hbm2 --pattern runs", "pattern must be sequential, random, runs:N, "),
        ("--standard hbm2 --pattern runs:0", "N of runs:N must be from 1 to "),
        ("--standard hbm2 --pattern random --map row", "map must name row, bank, column and "),
        ("--standard hbm2 --addresses /none", "/none: No such file or directory"),
    ],
)
def test_mistakes_are_one_sentence(run, options, sentence):
    status, _, err = run(f"dram {options}")
    assert status == 2 and one_sentence(err).startswith(sentence)


def test_a_block_on_a_dram(run):
    status, out, _ = run(
        f"{READER} --driver harness --stall none --memory sdr_133,clock=133 --json"
    )
    result = json.loads(out)
    assert status == 0 and result["passed"] and result["predicted"] is None
    assert result["memory"]["none"].startswith("sdr_133,channels=1,clock=133,")
    figures = result["dram"]["none"]["memory"]
    assert figures["standard"] == "sdr_133" and 0 < figures["achieved"] <= 1
    assert figures["reads"] > figures["row_hits"] > 0 == figures["writes"]


def test_the_table_of_cores(monkeypatch):
    """Of one block with a memory; what the figures of all of them are made of."""
    monkeypatch.setattr(dram_cores, "CORES", {"stream.sequential_reader": ("small", 6)})
    said: list[str] = []
    [row] = dram_cores.measure_cores(said.append)
    ideal = row["cycles"]
    for found in row["memories"].values():
        assert found["cycles"] > ideal and 0 < found["row_hits"] < 1
    assert row["memories"].keys() == dram_cores.MEMORIES.keys()
    assert len(said) == 2 + len(dram_cores.MEMORIES) and f"ideal: {ideal} cycles" in said[1]
    [*_, line] = dram_cores.table_of([row])
    assert line.startswith(f"| `stream.sequential_reader` small | 6 | {ideal} | {row['bytes']} | ")
