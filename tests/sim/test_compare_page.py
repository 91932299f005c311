"""The page of a comparison, from rows as the command makes them."""

import json

import pytest

from golden.files import json_text
from sim.studies.compare import cases
from sim.studies.compare.command import MEMORY
from sim.studies.compare.data import Shape
from sim.studies.compare.page import NAME, kept, study_of
from sim.studies.compare.rows import Setting

MEMORIES = "hbm2", "lpddr4_3200,map=x"
LOSSES = 0.003, 0.018


def row(design: str, memory: str, loss: float, cycles: int, kl: float) -> dict:
    return {
        "design": design,
        "n": 512,
        "memory": memory,
        "knob": f"{cycles} kept",
        "cycles": cycles,
        "cycles_ideal_port": None if design == "ideal" else cycles // 2,
        "seconds": cycles / 1e9,
        "bytes": {"k_read": 10 * cycles, "v_read": 500},
        "activations": None if design == "ideal" else 7,
        "energy_pj": None if design == "ideal" else {"dram_read": 2_500_000},
        "limit": "memory",
        "kl_allowed": loss,
        "kl": kl,
    } | ({"kl_se": 0.0002} if kl else {})


@pytest.fixture
def result():
    rows = [
        row(design, memory, loss, cycles, kl and loss + kl)
        for loss in LOSSES
        for memory in MEMORIES
        for design, cycles, kl in (
            ("ideal", 1000, 0),
            ("baseline.dense_core", 1600, 0),
            ("veda.veda_core", 640, 0.001),
        )
    ]
    settings = {"d": 64, "heads": 9, "kv_heads": 3, "n": [512], "clock_mhz": 1000.0}
    settings |= {"memories": ["one", "another"], "data": ["made"]}
    left = [{"design": "lad.lad_tile", "n": 512, "why": "no setting reaches it"}]
    return {"settings": settings, "rows": rows, "left_out": left}


def test_a_table_for_each_memory_and_loss(result):
    study = study_of(result)
    assert [table.title for table in study.tables] == [
        f"`{memory}`, 512 tokens, KL of at most {loss:g} nats"
        for memory in MEMORIES
        for loss in LOSSES
    ]
    ideal, dense, veda = study.tables[1].rows
    assert ideal[4:] == ["", "1.60", "10.5", "", "", "memory"]
    assert dense == [
        *("dense_core", "1600 kept", "0.0000", "1600", "800"),
        *("1.00", "16.5", "7", "2.50", "memory"),
    ]
    assert veda[2] == "0.0190 ± 0.0002" and veda[5] == "2.50"
    assert "Left out: lad.lad_tile at 512 tokens: no setting reaches it." in study.setting


def test_several_contexts_have_a_picture(result):
    """Of the middle loss, each design at both; the reference is a dashed line."""
    longer = [row | {"n": 1024, "seconds": 3 * row["seconds"]} for row in result["rows"]]
    both = study_of(result | {"rows": [*result["rows"], *longer]})
    names = [picture.name.removeprefix(f"{NAME}_") for picture in both.pictures]
    assert names == ["time", "bytes", "context"]
    assert both.pictures[-1].caption.endswith("against the context, KL of at most 0.018 nats")
    panels = both.pictures[-1].draw().axes
    assert len(panels) == len(MEMORIES)
    ideal, dense, _ = panels[0].get_lines()
    assert ideal.get_linestyle() == "--" != dense.get_linestyle()
    assert [*dense.get_xdata()] == [512, 1024]
    assert [*dense.get_ydata()] == pytest.approx([1.6, 4.8])


def test_the_page_is_the_same_from_its_json(result, tmp_path, run):
    study_of(result).write(tmp_path)
    names = [f"{NAME}.md", f"{NAME}.json", f"{NAME}_time.svg", f"{NAME}_bytes.svg"]
    before = [(tmp_path / name).read_bytes() for name in names]
    assert kept(tmp_path).items() >= json.loads(json_text(result)).items()
    status, out, _ = run(f"compare --kept {tmp_path}")
    assert status == 0 and out.startswith("wrote ")
    assert [(tmp_path / name).read_bytes() for name in names] == before


def test_without_quality_there_are_no_pictures(result):
    rows = [
        {name: x for name, x in row.items() if not name.startswith("kl")}
        for row in result["rows"][:3]
    ]
    study = study_of(result | {"rows": rows})
    assert not study.pictures and [table.title for table in study.tables] == ["`hbm2`"]
    assert "KL" not in study.tables[0].columns


def test_what_is_missing_is_run_alone(result, tmp_path, run, monkeypatch):
    """A design whose command the page has keeps its row; another number of tokens is a new one."""
    name = "baseline.dense_core"
    setting = Setting(Shape(d=64, n=512, heads=9, kv_heads=3), MEMORY, "1000")
    known = row(name, MEMORY, 0.003, 1600, 0.5) | {"source": setting.command(name, ())}
    known["data"] = "made"
    units = {"array": {"operation": "a sum"}}
    study_of(result | {"rows": [known], "units": units}).write(tmp_path)
    ran = []

    def execute(tasks, **_):
        ran.extend(tasks)
        return []

    monkeypatch.setattr(cases, "execute", execute)
    line = f"compare --page {tmp_path} --missing --json --design {name}"
    status, out, _ = run(line)
    assert status == 0 and not ran
    result = json.loads(out)
    found = next(of for of in result["rows"] if of["design"] == name)
    assert found == {key: x for key, x in known.items() if not key.startswith("kl")}
    assert result["units"] == units
    with pytest.raises(KeyError):  # nothing was measured
        run(f"{line} --n 511")
    assert [task.arguments[0] for task in ran] == [name]
