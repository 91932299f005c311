"""Area and energy of the logic of the designs that are compared."""

import json
from types import SimpleNamespace

import pytest

from sim.studies.compare import cases, logic
from sim.studies.compare.data import Shape
from sim.studies.compare.designs import DESIGNS
from sim.studies.compare.page import study_of
from sim.studies.compare.table import table_of

SHAPE = Shape(d=64, n=512, heads=9, kv_heads=3)
ROW = 2 * SHAPE.d
"""Bytes of a row of FP16 numbers."""


def moved(**rows: float) -> dict:
    return {"bytes": {name: count * ROW for name, count in rows.items()}}


def unit(operations: float, settled: float, glitches: float) -> dict:
    """A row of ``python -m sim energy`` with that many operations of any unit."""
    names = ("i", "words", "response", "value")
    return {
        "block": "some.unit",
        "beats": dict.fromkeys(names, operations) | {"value": 0},
        "results": {"values": operations},
        "parameters": {"query_bits": 1, "rows": 1},
        "settled_fj": operations * settled * 1000,
        "glitches_fj": operations * glitches * 1000,
        "clock_fj": 90,
        "flipflops": 10,
        "leakage_uw": 4,
        "area_um2": 200,
    }


PRICES = logic.Prices(
    {name: unit(7, settled=10**at, glitches=3) for at, name in enumerate(logic.UNITS)}
)


@pytest.mark.parametrize(
    "design, row, counts",
    [
        # Each row of K and of V serves the three heads of a group.
        ("baseline.dense_core", moved(k_read=10, v_read=8), {"array": 54, "score": 30}),
        ("veda.veda_core", moved(k_read=10, v_read=8), {"array": 54, "score": 30}),
        ("baseline.h2o_core", moved(k_read=10, v_read=8), {"array": 18, "score": 10}),
        # A word has the K and the V of a row.
        (
            "tsuru.tsuru_core",
            moved(k_read=5, other_read=4),
            {"search": 5, "array": 24, "score": 12},
        ),
        (
            "topick.topick_core",
            moved(k_read=3, v_read=1) | {"parameters": {"chunk_bits": 4}},
            {"chunk": 16},
        ),
        (
            "unicaim.unicaim_core",
            moved(k_read=9, v_read=9) | {"parameters": {"query_bits": 3, "rows": 40}},
            {"array": 18, "score": 9, "plane": 1080},
        ),
        ("lad.lad_tile", moved(k_read=2, v_read=3, other_read=4), {"vector": 9}),
        # Bytes of a row of FP16 numbers are four rows of indices.
        ("kllm.kllm_core", moved(k_read=2, v_read=3), {"key": 24, "values": 36}),
    ],
)
def test_operations_by_hand(design, row, counts):
    assert logic.operations({"design": design} | row, SHAPE) == pytest.approx(counts)


def test_every_design_has_operations_of_known_units():
    for name in DESIGNS:
        row = {"design": name, "parameters": {"chunk_bits": 4, "query_bits": 3, "rows": 8}}
        found = logic.operations(row | moved(k_read=8, v_read=8, other_read=8), SHAPE)
        assert found.keys() <= logic.UNITS.keys() and all(found.values())


def test_units_have_the_heads_of_the_prices():
    for of in logic.UNITS.values():
        assert getattr(of.parameters, "d", 64) == 64
        assert of.command.startswith(f"python -m sim energy {of.block} --preset {of.preset}")


def test_energy_by_hand():
    row = {"design": "baseline.dense_core"} | moved(k_read=10, v_read=8)
    row |= {"flipflops": 1000, "area_um2": 5000, "cycles": 200, "seconds": 2e-7}
    row["memory_bits"] = 10_000
    # 64 bits of 1024 rows take 10 pJ at 0.9 V, of 256 rows half of that.
    stores = {"rows": 1024, "bits": 128}, {"rows": 256, "bits": 64}
    row["memories"] = [
        stores[0] | {"reads": 3, "bits_written": 64},
        stores[1] | {"reads": 0, "bits_written": 32},
    ]
    found = logic.energy_of(row, SHAPE, PRICES)
    memories = (3 * 20 + 10 + 2.5) * (1.1 / 0.9) ** 2
    assert found == {
        "arithmetic": 54 * 1 + 30 * 10,
        "arithmetic_glitches": 84 * 3,
        # A buffer for 20 pins, and one for 20 buffers, and so on: 12.3 / 19 fJ a pin.
        "clock": round((0.009 + 0.0123 / 19) * 1000 * 200),
        "leakage": round((0.02 * 5000 + 0.0243 * 10_000) * 0.2),
        "memories": round(memories),
        "wires": round(0.24 * (354 + 252) + 0.08 * (1800 + 129.47)),
    }
    least = 354 + found["clock"] + found["leakage"] + found["memories"]
    assert logic.bounds(found) == (least, least + 252 + found["wires"])
    # An operation on heads of 128 elements is twice one on 64.
    assert PRICES.operation("array", 128) == pytest.approx((2, 6))


def result_and_case():
    setting = cases.Setting(SHAPE, "hbm2", "1000")
    name = "baseline.dense_core"
    case = cases.Case(SHAPE, None, (setting,), {name: ()}, {})
    row = {"design": name, "n": 512, "memory": "hbm2", "knob": "all", "cycles": 100}
    row |= {"cycles_ideal_port": 90, "seconds": 1e-7, "activations": 3, "share_of_peak": 0.5}
    row |= {"energy_pj": {"dram_read": 2_000_000}, "limit": "compute"}
    row |= moved(k_read=1536, v_read=1536) | {"source": setting.command(name, ())}
    row["memories"] = []
    ideal = row | {"design": "ideal", "source": "bytes / peak", "energy_pj": None}
    settings = {"d": 64, "heads": 9, "kv_heads": 3, "n": [512], "clock_mhz": 1000.0}
    settings |= {"memories": ["hbm2"], "data": ["made"]}
    return {"settings": settings, "rows": [ideal, row], "left_out": []}, case


def test_rows_get_their_design_s_area(monkeypatch):
    """The unit rows and the areas come from tasks; the reference has no logic."""
    result, case = result_and_case()

    def execute(tasks, **_):
        for task in tasks:
            value = unit(7, 1, 3)
            if task.name.startswith("area"):
                assert task.arguments[0] == "baseline.dense_core"
                assert task.arguments[2].parallel == SHAPE.group
                entry = SimpleNamespace(area_um2=2e6, flipflops=5, memory_bits=4000)
                value = [(entry, "")]
            yield SimpleNamespace(
                task=task, result=lambda value=value: value, kept=False, seconds=1
            )

    monkeypatch.setattr(cases, "execute", execute)
    found = cases.with_logic([case], result)
    ideal, dense = found["rows"]
    assert "chip_pj" not in ideal and dense["area_um2"] == 2e6
    assert dense["memory_um2"] == pytest.approx(4000 * 0.5247, abs=1)
    assert dense["chip_pj"]["arithmetic"] == 9216 + 4608
    assert found["units"]["chunk"]["source"] == logic.UNITS["chunk"].command
    json.dumps(found)
    study = study_of(found)
    assert [picture.name for picture in study.pictures] == ["equal_terms_energy"]
    table, ranking, prices = study.tables
    assert table.columns[-3:-1] == ("chip, mm²", "chip, µJ")
    assert table.rows[0][-3:-1] == ["", ""] and table.rows[1][-3] == "2.00 + 0.00"
    least = logic.bounds(dense["chip_pj"])[0] / 1e6
    cells = [f"dense_core {2 * share + least:.1f}" for share in (0.5, 1, 2)]
    assert [*ranking.rows[0]] == ["hbm2", "512", "", *cells]
    assert len(prices.rows) == len(logic.UNITS) and prices.rows[0][2] == "1.00 to 4.00"
    shown = table_of(found["rows"])
    assert [column.header for column in shown.columns][-3:-1] == ["chip, mm²", "chip, µJ"]
    assert "chip, µJ" not in [column.header for column in table_of(result["rows"]).columns]
