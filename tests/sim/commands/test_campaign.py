"""The campaign: tests as tasks, what counts as a pass, what is repeated."""

import dataclasses
import json

import pytest

from golden import InputError
from sim.commands import campaign
from sim.commands.campaign import TestRun, collect, group, run_tests
from sim.core.jobs import executor as executor_module
from sim.core.jobs import reads
from sim.core.jobs.executor import Outcome, Task
from sim.core.jobs.record import Record
from sim.core.tools import ROOT, ToolError

TESTS = """
import pytest

@pytest.mark.campaign
@pytest.mark.parametrize("number", [1, 2])
def test_long(number):
    assert number == 1, "not one"

@pytest.mark.campaign
def test_skipped():
    pytest.skip("there is no tool")

def test_short():
    raise AssertionError("of the suite")
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of one test file, with this one's settings of pytest."""
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path / "build"))
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(TESTS)
    return tmp_path


LONG = [f"tests/test_one.py::test_long[{number}]" for number in (1, 2)]
SKIPPED = "tests/test_one.py::test_skipped"


def test_only_marked_tests_are_collected(project):
    assert collect(("tests",)) == [*LONG, SKIPPED]


def test_what_was_run_is_counted(project):
    run = run_tests((*LONG, SKIPPED))
    assert list(run.seconds) == LONG and run.cpu_s > 0.1 and run.skipped == ["there is no tool"]
    (failure,) = run.failures
    assert failure.startswith(f"{LONG[1]}: AssertionError: not one") and not run.passed
    assert TestRun(seconds=run.seconds).passed and not TestRun(skipped=run.skipped).passed


def test_no_report_and_no_tests_are_one_sentence(project):
    with pytest.raises(ToolError, match="^pytest ended with status 4: .*no-such-option"):
        run_tests(("--no-such-option",))
    with pytest.raises(InputError, match="^no test of the campaign in --no-such: .*: error: "):
        collect(("--no-such",))


def test_grouping():
    """By file, up to MINUTES, the dearest first; a dear test has a task of its own."""
    names = [f"tests/a.py::test[{n}]" for n in range(40)]
    names += ["tests/b.py::test_dear", "tests/b.py::test_cheap", "tests/c.py::test"]
    tasks = group(names, {"tests/b.py::test_dear": 300.0, "tests/b.py::test_cheap": 1.0})
    assert [list(task.arguments[0]) for task in tasks] == [
        names[:30],
        names[30:40],
        ["tests/b.py::test_dear"],
        ["tests/b.py::test_cheap"],
        ["tests/c.py::test"],
    ]
    assert tasks[2].name == "b.py test_dear" and tasks[0].name.endswith("… (30 tests)")


def run_campaign(run, monkeypatch, outcomes: dict, command=""):
    """Status, output and tasks that were run, with `outcomes` in place of tests."""
    asked = []

    def execute(tasks, *, keep=None, **options):
        for task in tasks:
            if task.function is collect:
                yield Outcome(task, sorted(outcomes))
                continue
            asked.append(task.name)
            value = outcomes[task.name]
            assert not keep(value), "they are kept by file"
            error = value if isinstance(value, Exception) else None
            yield Outcome(task, None if error else value, error, 60.0, kept=False)

    monkeypatch.setattr(executor_module, "execute", execute)
    monkeypatch.setattr(
        campaign, "group", lambda names, seconds: [Task(n, run_tests, ((n,),)) for n in names]
    )
    status, out, err = run(f"campaign {command}")
    return status, out, asked


GOOD = TestRun(seconds={"tests/a.py::test": 90.0}, cpu_s=120.0)


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """What runs of this test keep, in place of the build folder's."""
    found: dict = {}

    class Results:
        def __init__(self, sources):
            assert sources == campaign.KEPT_BY

        def load(self, function, arguments):
            return found.get((function, arguments))

        def store(self, function, arguments, result):
            found[function, arguments] = result

    monkeypatch.setattr(campaign, "Results", Results)
    return found


@pytest.fixture(autouse=True)
def record(monkeypatch, tmp_path):
    """Path of an empty record in place of the project's."""
    monkeypatch.setattr(campaign, "RECORD", tmp_path / "campaign.json")
    return tmp_path / "campaign.json"


@pytest.mark.parametrize(
    "bad, line",
    [
        (TestRun(), "FAIL b: no test was run: pytest found none"),
        (TestRun(skipped=["no tool"]), "FAIL b: no test was run: no tool"),
        (TestRun({"b::t": 1.0}, 1.0, ["b::t: broken"]), "FAIL b::t: broken"),
        (ToolError("died"), "FAIL b: died"),
    ],
    ids=["no test", "skipped", "failed", "died"],
)
def test_a_campaign_fails_with_a_line_for_each_reason(run, monkeypatch, bad, line):
    status, out, asked = run_campaign(run, monkeypatch, {"a": GOOD, "b": bad})
    assert status == 1 and asked == ["a", "b"] and out.splitlines()[-1] == line


def test_a_campaign_ends_with_its_dearest_tests(run, monkeypatch, record):
    record.write_text('{"seconds": {"old": 50, "tests/a.py::test": 20}, "passed": {}}')
    few = TestRun(seconds={"tests/b.py::test": 3.0}, skipped=["no tool"])
    outcomes = {"tests/a.py::test": GOOD, "tests/b.py::test": few}
    status, out, _ = run_campaign(run, monkeypatch, outcomes, "--record")
    assert status == 0 and "a.py::test" in out
    said = "2 tests were run, 0 failed, 1 skipped; 2.0 minutes of processor time; 0 of"
    assert said in out
    written = json.loads(record.read_text())
    assert written["seconds"] == {"old": 50, "tests/a.py::test": 90}
    # The other file has a test that was skipped.
    assert list(written["passed"]) == ["tests/a.py"]


def test_what_passed_is_run_again_after_a_change_alone(run, monkeypatch, kept):
    """Of the files that it read; a failure and a part of a file's tests are never held."""
    hashes = {"hw/kllm/x.py": "1", "hw/kllm/y.py": "2", "tests/a.py": "3", "sim/z.py": "4"}
    monkeypatch.setattr(reads, "content", lambda: hashes)
    good = TestRun({"tests/a.py::one": 1.0}, reads=frozenset({"hw/kllm/x.py", "tests/a.py"}))
    bad = TestRun({"tests/b.py::one": 1.0}, 1.0, ["tests/b.py::one: broken"])
    outcomes = {"tests/a.py::one": good, "tests/b.py::one": bad}

    def ran(command="", outcomes=outcomes):
        kept.clear()  # as it is after any change
        return run_campaign(run, monkeypatch, outcomes, command)

    both = ["tests/a.py::one", "tests/b.py::one"]
    assert ran("tests/a.py::one --record")[2] == both
    assert ran("--record")[2] == both
    status, out, asked = ran()
    assert status == 1 and asked == both[1:] and "1 tests of 1 of 2 files passed when" in out
    assert "1 tests of 1 of 2" in ran("--list")[1]
    hashes["hw/kllm/y.py"] = "5"
    assert ran()[2] == both[1:]
    assert ran("--fresh")[2] == both
    hashes["hw/kllm/x.py"] = "6"
    assert ran()[2] == both
    hashes["hw/kllm/x.py"] = "1"
    assert ran()[2] == both[1:]
    more = outcomes | {"tests/a.py::two": RuntimeError("died")}
    assert ran(outcomes=more)[2] == [both[0], "tests/a.py::two", both[1]], "there is a new test"


@pytest.mark.parametrize("bad", [ToolError("died"), "broken"], ids=["died", "failed"])
def test_a_file_that_fails_leaves_the_record(run, monkeypatch, kept, bad):
    """Though what it reads has not changed."""
    monkeypatch.setattr(reads, "content", lambda: {"tests/a.py": "3"})
    good = TestRun({"tests/a.py::one": 1.0}, reads=frozenset({"tests/a.py"}))
    if isinstance(bad, str):
        bad = dataclasses.replace(good, failures=[bad])

    def ran(outcome, command):
        kept.clear()
        return run_campaign(run, monkeypatch, {"tests/a.py::one": outcome}, command)[2]

    assert ran(good, "--record") and not ran(good, "")
    assert ran(bad, "--fresh --record")
    assert ran(good, "") == ["tests/a.py::one"]


def test_an_interrupted_campaign_goes_on(run, monkeypatch, record):
    """With the tests that have not passed, whatever their tasks; then the file is recorded."""
    one, two, three = (f"tests/a.py::{name}" for name in ("one", "two", "three"))
    good = {
        name: TestRun({name: 40.0}, 30.0, reads=frozenset({"tests/a.py"})) for name in (one, two)
    }
    skipped = TestRun({three: 1.0}, skipped=["no tool"], reads=frozenset({"tests/a.py"}))
    interrupted = {one: good[one], two: RuntimeError("died")}
    assert run_campaign(run, monkeypatch, interrupted, "--record")[::2] == (1, [one, two])
    assert not json.loads(record.read_text())["passed"]
    status, out, asked = run_campaign(run, monkeypatch, good, "--record")
    assert (status, asked) == (0, [two])
    assert "2 tests were run, 0 failed, 0 skipped; 1.0 minutes" in out
    assert "1 of the tests by an earlier run" in out
    assert list(json.loads(record.read_text())["passed"]) == ["tests/a.py"]
    assert run_campaign(run, monkeypatch, good, "--fresh")[2] == [one, two]
    # One that was skipped is not run again either, and its file is not recorded.
    more = good | {three: skipped}
    assert run_campaign(run, monkeypatch, more, "--record")[2] == [three]
    assert run_campaign(run, monkeypatch, more, "--record")[::2] == (0, [])


def test_results_are_kept_where_their_hash_has_what_was_read():
    """Else a change of docs would be recorded as passed without a run."""
    run = TestRun({"tests/a.py::one": 1.0}, reads=frozenset({"hw/kllm/x.py", "tests/a.py", "*"}))
    assert run.keepable
    for other in ("docs/verilog.md", "examples/axi_soc/axi_ram.py", "README.md"):
        assert not dataclasses.replace(run, reads=run.reads | {other}).keepable
    assert not dataclasses.replace(run, failures=["broken"]).keepable


def test_the_record_is_of_tests_that_there_are():
    """Of files at least: which tests they have is known only when they are collected."""
    record = Record.load(ROOT / reads.RECORD)
    for name in (*record.seconds, *record.passed):
        assert (ROOT / name.partition("::")[0]).exists(), name
    assert all(seconds >= campaign.DEAR for seconds in record.seconds.values())
