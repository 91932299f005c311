"""What all studies share: verdicts, tables, pages; and the pages and data that are kept in docs."""

import dataclasses
import json
from pathlib import Path

import pytest

from golden.evaluation.plots import curves
from golden.studies import results
from golden.studies.kllm_cost import page as kllm_cost
from golden.studies.kllm_cost.rates import Setting as KllmSetting
from golden.studies.study import OURS, Claim, Picture, Study, Table, Verdict, close, tally
from golden.studies.unicaim_circuit import page as unicaim_circuit
from golden.studies.unicaim_cost import page as unicaim_cost
from golden.studies.unicaim_cost.sweeps import Setting as UnicaimSetting
from sim.studies import veda
from sim.studies.areas import command as areas
from sim.studies.kllm import page as counting
from sim.studies.lad import page as lad
from sim.studies.topick import page as pruning
from sim.studies.topick.measured import read
from sim.studies.topick.together import read_together

RESULTS = Path(__file__).parents[2] / "docs" / "results"
KEPT = {
    "kllm_cost": lambda: kllm_cost.study(KllmSetting()),
    "unicaim_cost": lambda: unicaim_cost.study(UnicaimSetting()),
    "unicaim_circuit": lambda: unicaim_circuit.study(
        unicaim_circuit.read(RESULTS / "unicaim_circuit.json")
    ),
    "veda_speed": veda.speed_study,
    **{f"{page.name}_area": lambda page=page: page.study(areas.read()) for page in areas.PAGES},
    "lad_speed": lambda: lad.study(lad.read(RESULTS / "lad_speed.json"), lad.kept_rows()),
    "topick_speed": lambda: pruning.study(
        read(RESULTS / "topick_speed.json"), read_together(RESULTS / "topick_speed.json")
    ),
    "kllm_counting": lambda: counting.study(counting.read(RESULTS / "kllm_counting.json")),
}


@pytest.mark.parametrize("name", [*results.EXPERIMENTS, *KEPT])
def test_pages_in_the_docs(name):
    """They follow from the data beside them or from formulas; the data are written as read."""
    study = KEPT[name]() if name in KEPT else results.read_kept(RESULTS, name)
    assert study.name == name
    assert study.markdown() == (RESULTS / f"{name}.md").read_text()
    assert all((RESULTS / f"{picture.name}.svg").exists() for picture in study.pictures)
    if study.data:
        assert study.json() == (RESULTS / f"{name}.json").read_text()


def test_verdicts():
    assert Verdict.of(True, True) == Verdict.REPRODUCED == "reproduced"
    assert Verdict.of(True, False) == Verdict.PARTLY == "partly"
    assert Verdict.of(False) == Verdict.NOT == "not reproduced"
    assert close(1.09, 1) and close(0.91, 1) and not close(1.11, 1)
    claims = [Claim("", "", verdict) for verdict in (Verdict.NOT, Verdict.HOLDS, Verdict.NOT)]
    assert tally(claims) == "Verdicts of 3: holds: 1, not reproduced: 2."


def made(**more) -> Study:
    claims = [
        Claim("|three|", "two", Verdict.PARTLY, "one was lost"),
        Claim("none", "none", Verdict.HOLDS, whose=OURS),
    ]
    table = Table.of("Folds", ["ab"], ("fold", "{0[0]}"), ("n", lambda x: str(len(x) - 1)))
    picture = Picture("cranes", "a crane", lambda: curves([1, 2], {"a": [1, 2]}, "x", "y"))
    return Study("cranes", "Cranes", "By hand.", claims, [table], [picture], **more)


def test_files_of_a_study(tmp_path):
    study = made(about={"by": "hand"}, data={"folds": [float("nan")]})
    plain = dataclasses.replace(study, pictures=())
    assert plain.write(tmp_path / "new").endswith("new/cranes.md, .json and 0 pictures")
    assert (tmp_path / "new/cranes.md").read_text() == plain.markdown()
    assert study.markdown() == (
        "# Cranes\n\nBy hand.\n\n"
        "| paper | here | verdict | why |\n| --- | --- | --- | --- |\n"
        "| \\|three\\| | two | partly | one was lost |\n\n"
        "| this project's own | here | verdict | why |\n| --- | --- | --- | --- |\n"
        "| none | none | holds |  |\n\n"
        "![a crane](cranes.svg)\n\n"
        "Folds:\n\n| fold | n |\n| --- | --- |\n| a | 1 |\n"
    )
    content = json.loads((tmp_path / "new/cranes.json").read_text())
    assert list(content) == ["by", "title", "claims", "folds"] and content["folds"] == [None]
    assert [claim["whose"] for claim in content["claims"]] == ["paper", "project"]


@pytest.mark.campaign
def test_the_same_data_give_the_same_picture(tmp_path):
    for folder in ("a", "b"):
        assert made().write(tmp_path / folder).endswith("cranes.md, .json and 1 picture")
    assert (tmp_path / "a/cranes.svg").read_bytes() == (tmp_path / "b/cranes.svg").read_bytes()


def test_claims_of_many_figures_say_where():
    claim = Claim("three", "two", Verdict.NOT, where="Fig. 8")
    assert list(claim.as_json())[0] == "where" and "where" not in made().claims[0].as_json()
    study = Study("cranes", "Cranes", "", [claim, Claim("four", "one", Verdict.NOT)])
    columns, rows = study.verdicts("").columns, study.verdicts("").rows
    assert columns[:2] == ("", "paper") and [row[0] for row in rows] == ["Fig. 8", ""]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "made").write_text("")
    with pytest.raises(FileExistsError, match="made"):
        made().write(tmp_path / "made")
