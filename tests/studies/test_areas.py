"""Areas of the papers' cores by unit, from parts that were mapped by hierarchy."""

import json
from pathlib import Path

import pytest

from golden.studies.study import Verdict
from sim.__main__ import parser
from sim.core.tools import UnusableFile
from sim.studies.areas import command, kllm, lad, topick, veda
from sim.studies.areas.page import beside, largest
from sim.studies.areas.units import MODE, NOTHING, Core, Unit, UnitArea, shares

KEPT = json.loads((Path(__file__).parents[2] / "docs" / "results" / "synthesis.json").read_text())


def part(module: str, own: float, whole: float, bits: int = 0, instances: int = 1) -> dict:
    areas = {"area_um2": own, "whole_um2": whole, "whole_memory_bits": bits}
    return {"module": module, "instances": instances, **areas}


def core() -> dict:
    """A core of 1000 µm² and 64 bits, whose array has 500 µm² in two PEs."""
    modules = {"compared_rows": (90, 590), "pe_array": (20, 500), "voting_engine": (100, 100)}
    modules |= {"reorder_buffer": (200, 200), "row_map": (50, 50)}
    bits = {"reorder_buffer": 40, "voting_engine": 16, "compared_rows": 2}
    parts = [part(name, *areas, bits.get(name, 0)) for name, areas in modules.items()]
    parts = [part("(top)", 60, 1000, 64), *parts, part("pe", 240, 240, 1, instances=2)]
    names = {"block": "veda.veda_core", "preset": "paper", "mode": MODE}
    return {**names, "area_um2": 1000, "memory_bits": 64, "parts": parts}


def small(**more) -> Core:
    """A paper with an array, and a buffer of 8 bits of 2 µm²; the array here has two PEs."""
    units = {"PEs": Unit({"pe": 2}), "array": Unit({"pe_array": 1}, {"pe": 2})}
    um2 = {"array": 10, "network": 4, "buffer": 16}
    sizes = {"buffer": "buffer", "buffer_bits": 8}
    return Core("veda.veda_core", nm=90, um2=um2, units=units, **sizes, **more)


def test_units_add_up_to_the_core():
    """A unit has the modules inside it but other units; the rest is the schedule."""
    units = veda.CORE.units_of(core())
    logic = {name: unit.logic_um2 for name, unit in units.items()}
    assert list(logic) == list(veda.PAPER_UM2)
    assert list(logic.values()) == [500, 100, 90, 50 + 60, 200]
    assert [unit.memory_bits for unit in units.values()] == [0, 16, 2, 6, 40]
    buffer = veda.CORE.area(units["on-chip buffer"])
    assert buffer == pytest.approx(200 + 40 * veda.BIT_UM2)


def test_units_of_several_instances():
    """Units of the paper come first; a unit that is not in its table, and the rest, after them."""
    units = small().units_of(core())
    assert units == {
        "array": UnitArea(20, -2),
        "PEs": UnitArea(480, 2),
        "the rest": UnitArea(500, 64),
    }
    pooled = small(pooled=True).units_of(core())
    assert list(pooled) == ["array", "buffer", "PEs", "the rest"]
    assert pooled["buffer"] == UnitArea(0, 64) and pooled["PEs"] == UnitArea(480, 0)


@pytest.mark.parametrize("module", ["voting_engine", "pe_array"])
def test_as_many_modules_as_the_unit_has(module):
    """Modules that are a unit are all of the core's; inside a unit there may be some of them."""
    row = core()
    [found] = [each for each in row["parts"] if each["module"] == module]
    found["instances"] = 0
    with pytest.raises(ValueError, match=f"veda.veda_core paper must be 1 × {module}, not 0"):
        veda.CORE.units_of(row)
    found["instances"] = 2
    with pytest.raises(ValueError, match=f"1 × {module}, not 2"):
        veda.CORE.units_of(row)
    inside = Unit({"compared_rows": 1}, {module: 1})
    assert inside.area({each["module"]: each for each in row["parts"]}).logic_um2 < 590
    row["parts"].remove(found)
    with pytest.raises(ValueError, match="not 0"):
        veda.CORE.units_of(row)


def test_rows_of_the_core_by_hierarchy():
    flat, other = core() | {"mode": "area"}, core() | {"block": "kllm.kllm_core"}
    first, small = core() | {"preset": "default"}, core() | {"preset": "small"}
    rows = [flat, core(), other, small]
    assert veda.CORE.kept([*rows, first]) == {"default": first, "paper": core()}
    with pytest.raises(UnusableFile, match="lack veda.veda_core default, area, by hierarchy"):
        veda.CORE.kept(rows)


def test_the_table_beside_the_papers():
    """Figures on both sides, on the paper's alone and on ours alone."""
    units = {"array": UnitArea(30, 0), "PEs": UnitArea(50, 10)}
    table = beside(small(), {name: unit * 10**6 for name, unit in units.items()}, "")
    mm2 = {name: row for name, *row in table.rows}
    assert mm2["array"] == [
        "0.000",
        "0.000",
        "33.3",
        "30.000",
        "0",
        "30.000",
        "35.3",
        "12000000.00",
    ]
    assert mm2["network"] == ["0.000", "0.000", "13.3", *[""] * 5]
    assert mm2["PEs"] == ["", "", "", "50.000", "10,000,000", "55.000", "64.7", ""]
    assert mm2["all"][3:6] == ["80.000", "10,000,000", "85.000"]
    assert len({len(row) for row in [table.columns, *table.rows]}) == 1
    free = Core("", 45, small().um2, {})
    assert free.area(units["PEs"]) == 50 and len(beside(free, units, "").columns) == 8
    assert largest(core(), "").rows[0] == ["`pe`", "2", "240", "0.000", "48.0"]


@pytest.mark.parametrize("page", command.PAGES, ids=lambda page: page.name)
def test_kept_cores(page):
    """All of a core is in its units, once."""
    for row in page.core.kept(KEPT).values():
        units = page.core.units_of(row)
        whole = sum(units.values(), NOTHING)
        assert whole.logic_um2 == pytest.approx(row["area_um2"], rel=1e-9)
        assert whole.memory_bits == row["memory_bits"]
        assert min(min(unit.logic_um2, unit.memory_bits) for unit in units.values()) >= 0
        own = sum(each["instances"] * each["area_um2"] for each in row["parts"])
        assert own == pytest.approx(row["area_um2"], rel=1e-6)


def test_vedas_table():
    """The paper's total is 1.058 mm², of which it names 6.5 % and less than 3 %."""
    assert sum(veda.PAPER_UM2.values()) == 1_058_000
    assert {*veda.UNITS, "schedule"} == set(veda.PAPER_UM2)
    of = shares(veda.PAPER_UM2)
    assert of["voting engine"] == pytest.approx(6.5, abs=0.05)
    assert of["special function unit"] < 3
    assert pytest.approx(2.58, abs=0.01) == veda.CORE.scale


def of_paper(core: Core, **factors: float) -> dict[str, UnitArea]:
    """Units of the paper's own areas, scaled, each times its factor; memories by their price."""
    names = {name.replace(" ", "_"): name for name in core.um2}
    times = {names[name]: factor for name, factor in factors.items()}
    units = {}
    for name, um2 in core.um2.items():
        area = core.scale * um2 * times.get(name, 1)
        bits = name == core.buffer
        units[name] = UnitArea(0, round(area / core.bit_um2)) if bits else UnitArea(area, 0)
    return units


@pytest.mark.parametrize("page", [veda.PAGE, topick.PAGE, lad.PAGE], ids=lambda page: page.name)
def test_the_papers_own_areas_reproduce_its_claims(page):
    units = of_paper(page.core)
    units.pop(lad.SFM, None)
    arithmetic = {Verdict.HOLDS} if page is lad.PAGE else set()
    assert {claim.verdict for claim in page.claims(units)} == {Verdict.REPRODUCED} | arithmetic


def test_lads_table(monkeypatch):
    """Its rows make its totals and shares; an SRAM or a row that differs contradicts them."""
    claim = lad.sums_claim()
    assert claim.ours == "2.160, 2.795, 3.751 mm², 82.8 %" and claim.verdict == Verdict.HOLDS
    assert "13.0 to 22.5 mm²" in claim.why and "0.127, 0.106, 0.109" in claim.why
    with monkeypatch.context() as changed:
        changed.setitem(lad.SRAM_MM2, 2.5, 2.236)
        assert lad.sums_claim().verdict == Verdict.CONTRADICTS
    with monkeypatch.context() as changed:
        changed.setitem(lad.PAPER_UM2, "AC", 89e3)
        changed.setitem(lad.PAPER_UM2, "VPU", 396e3)
        assert lad.sums_claim().verdict == Verdict.CONTRADICTS
    units = lad.CORE.units_of(lad.CORE.kept(KEPT)["paper"])
    times = {n: units[n].logic_um2 / lad.PAPER_UM2[n] for n in ("EAS", "APID", "MD", "AC", "VPU")}
    assert min(times, key=times.__getitem__) == "VPU"  # as the page says


def test_lads_modules_at_thresholds():
    """Shares by hand: without SRAM and SFM the paper's VPUs have 398 of 495, AC 87."""
    units = of_paper(lad.CORE, SFM=0)
    units[lad.SRAM] = UnitArea(0, 1)
    assert [claim.verdict for claim in lad.claims(units)][1:] == [
        *(Verdict.PARTLY, *[Verdict.REPRODUCED] * 3),
    ]
    units["AC"] = units["AC"] * 2
    _, _, vpus, control, ac = lad.claims(units)
    assert vpus.ours == f"VPUs {100 * 398 / 582:.1f} %" and vpus.verdict == Verdict.NOT
    assert control.verdict == Verdict.NOT and ac.ours == f"{100 * 174 / 582:.1f} %"
    assert ac.verdict == Verdict.NOT


def test_topicks_overheads():
    """By hand: 0.014 + 0.010 + 16 × 0.004 over 8.593 less that and 16 × 0.025 mm²."""
    units = of_paper(topick.CORE)
    estimation, order = topick.overhead_claims(topick.CORE.areas(units))
    assert f"{100 * 0.088 / 8.105:.1f} % by Table 2" in estimation.ours
    assert f"{100 * 0.4 / 8.105:.1f} % by Table 2" in order.ours
    units = of_paper(topick.CORE, PEC=1.3, Scoreboard=0.8)
    verdicts = [claim.verdict for claim in topick.claims(units)]
    assert verdicts == [Verdict.REPRODUCED, *[Verdict.PARTLY] * 3]
    assert "0.007 mm²" in topick.claims(units)[0].why
    units[topick.BUFFER] = UnitArea(0, 1)
    assert topick.claims(units)[0].verdict == Verdict.NOT
    units = of_paper(topick.CORE)
    units[topick.MULTIPLIERS] *= 2
    assert topick.claims(units)[0].verdict == Verdict.NOT
    units = of_paper(topick.CORE, Prob_Gen=1.9)
    lanes, lane, *_ = topick.claims(units)
    assert (lanes.verdict, lane.verdict) == (Verdict.PARTLY, Verdict.NOT)


def test_kllms_counters_whole_and_by_hierarchy():
    """Counters alone fit if those mapped whole do, and not with the sums of their counts."""
    row = kllm.CORE.kept(KEPT)["paper"]
    [counter] = [x for x in row["parts"] if x["module"] == "index_distribution_counter_2"]
    own = 512 * counter["whole_um2"]
    whole = 512 * 17829
    units = kllm.CORE.units_of(row)
    assert units[kllm.COUNTERS].logic_um2 == own
    assert own / whole == pytest.approx(4 / 3, abs=0.03)  # "a third more"
    lanes, counters, *others = kllm.claims(units)
    share = 100 * whole / (row["area_um2"] - own + whole)
    assert f"{share:.1f} % if a counter is mapped whole" in counters.ours
    assert (lanes.verdict, counters.verdict) == (Verdict.NOT, Verdict.PARTLY)
    fetch = [x["whole_memory_bits"] for x in row["parts"] if x["module"] == "word_fetch"]
    assert row["memory_bits"] / 2 < fetch[0] == 128 * 16 * 512 * 4
    assert sum(kllm.PAPER_UM2.values()) / 1e6 == pytest.approx(9.012, abs=0.001)
    same = {name: UnitArea(kllm.CORE.scale * um2, 0) for name, um2 in kllm.PAPER_UM2.items()}
    same[kllm.SUMS] = NOTHING
    verdicts = [claim.verdict for claim in kllm.claims(same)]
    verdicts.pop(1)  # the counters', by the area here
    assert verdicts == [Verdict.REPRODUCED] * (1 + len(others))


def test_the_command(tmp_path, capsys):
    arguments = parser().parse_args(["areas", "-o", str(tmp_path / "new")])
    assert arguments.run(arguments) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    names = {f"{page.name}_area" for page in command.PAGES}
    assert {path.stem for path in (tmp_path / "new").iterdir()} == names


def test_no_page_without_all_areas(tmp_path, monkeypatch):
    rows = [row for row in KEPT if row["block"] != "lad.lad_tile"]
    monkeypatch.setattr(command, "read", lambda: rows)
    arguments = parser("areas").parse_args(["areas", "-o", str(tmp_path)])
    with pytest.raises(UnusableFile, match="lack lad.lad_tile paper"):
        arguments.run(arguments)
    assert not list(tmp_path.iterdir())
