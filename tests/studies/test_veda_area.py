"""Areas of VEDA's core by unit, from parts that were mapped by hierarchy."""

import pytest

from sim.studies.veda_area import BIT_UM2, PAPER_UM2, SCALE, UNITS, kept_rows, shares, units_of


def part(module: str, own: float, whole: float, bits: int = 0, instances: int = 1) -> dict:
    areas = {"area_um2": own, "whole_um2": whole, "whole_memory_bits": bits}
    return {"module": module, "instances": instances, **areas}


def core() -> dict:
    """A core of 1000 µm² and 64 bits, whose array has 500 µm² in two PEs."""
    modules = {"compared_rows": (90, 590), "pe_array": (20, 500), "voting_engine": (100, 100)}
    modules |= {"reorder_buffer": (200, 200), "row_map": (50, 50)}
    bits = {"reorder_buffer": 40, "voting_engine": 16, "compared_rows": 2}
    parts = [part(name, *areas, bits.get(name, 0)) for name, areas in modules.items()]
    parts = [part("(top)", 60, 1000, 64), *parts, part("pe", 240, 240, instances=2)]
    names = {"block": "veda.veda_core", "preset": "paper", "mode": "area, by hierarchy"}
    return {**names, "area_um2": 1000, "memory_bits": 64, "parts": parts}


def test_units_add_up_to_the_core():
    """A unit has the modules inside it but other units; the rest is the schedule."""
    units = units_of(core())
    logic = {name: unit.logic_um2 for name, unit in units.items()}
    assert list(logic) == list(PAPER_UM2)
    assert list(logic.values()) == [500, 100, 90, 50 + 60, 200]
    assert [unit.memory_bits for unit in units.values()] == [0, 16, 2, 6, 40]
    assert units["on-chip buffer"].um2 == pytest.approx(200 + 40 * BIT_UM2)


@pytest.mark.parametrize("instances", [0, 2])
def test_a_unit_is_one_module(instances):
    row = core()
    [voting] = [each for each in row["parts"] if each["module"] == "voting_engine"]
    voting["instances"] = instances
    with pytest.raises(ValueError, match=r"voting engine of veda.veda_core paper must be a single"):
        units_of(row)


def test_rows_of_the_core_by_hierarchy():
    flat, other = core() | {"mode": "area"}, core() | {"block": "kllm.kllm_core"}
    first = core() | {"preset": "default"}
    assert kept_rows([flat, core(), other, first]) == {"default": first, "paper": core()}


def test_the_papers_table():
    """The paper's total is 1.058 mm², of which it names 6.5 % and less than 3 %."""
    assert sum(PAPER_UM2.values()) == 1_058_000 and {*UNITS, "schedule"} == set(PAPER_UM2)
    of = shares(PAPER_UM2)
    assert of["voting engine"] == pytest.approx(6.5, abs=0.05)
    assert of["special function unit"] < 3
    assert pytest.approx(2.58, abs=0.01) == SCALE
