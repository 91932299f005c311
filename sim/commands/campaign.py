"""``python -m sim campaign``: the tests that are too long for the suite, as tasks that resume.

Consecutive tests of one file are one task, because they share compiled designs, until they are
expected to take MINUTES. The longest file goes first, and its longest task, so that an interrupted
campaign leaves files that are complete: ``docs/results/campaign.json`` says which files of tests
passed and what they read then, and they are not run again until a file that they read changes, or
they have other tests.

An interrupted campaign also keeps which tests passed, file by file, as long as no source changes:
not task by task, since the tests of a task depend on times that each run measures anew.
"""

import dataclasses
import re
import resource
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.table import Table
from tqdm import tqdm

from golden import InputError
from sim.commands.arguments import add_execution, execution
from sim.commands.terminal import print_table
from sim.core.jobs import executor, kept, reads
from sim.core.jobs.executor import SOURCES, Task
from sim.core.jobs.kept import Results
from sim.core.jobs.record import Record
from sim.core.tools import ROOT, ToolError, require_checkout

RECORD = ROOT / reads.RECORD
"""Files of tests that passed, with what they read, and seconds of tests that take DEAR or more."""

DEAR, OTHERS, MINUTES = 30, 8, 4
"""Seconds of a dear test; seconds expected of a test without a record; minutes of a task."""

DEAREST = 10

KEPT_BY = (*SOURCES, "tests", "pyproject.toml")
"""Files and folders that a kept result depends on."""


@dataclasses.dataclass
class TestRun:
    """Results of some tests.

    seconds
        Wall-clock time by name, of the tests that were run.
    cpu_s
        Processor time of all tests and the programs they started.
    failures
        A line for each test that failed.
    skipped
        Reasons.
    reads
        What the tests read, see :func:`sim.core.jobs.reads.noted`.
    """

    __test__ = False  # no class of tests, whatever its name

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    cpu_s: float = 0.0
    failures: list[str] = dataclasses.field(default_factory=list)
    skipped: list[str] = dataclasses.field(default_factory=list)
    reads: frozenset[str] = frozenset()

    @property
    def passed(self) -> bool:
        """Whether there were tests and none failed."""
        return bool(self.seconds) and not self.failures

    @property
    def keepable(self) -> bool:
        """Whether the tests passed and read nothing that a kept result does not depend on."""
        return self.passed and all(
            name.startswith((*KEPT_BY, reads.EVERYTHING)) for name in self.reads
        )

    def joined(self, other: "TestRun") -> "TestRun":
        """Both, of different tests."""
        return TestRun(
            self.seconds | other.seconds,
            self.cpu_s + other.cpu_s,
            self.failures + other.failures,
            self.skipped + other.skipped,
            self.reads | other.reads,
        )


class Kept:
    """Tests that earlier runs have passed on the same sources.

    runs
        Names of the tests that have been run, and their results together, by file.
    """

    def __init__(self, files: Iterable[str], *, fresh: bool) -> None:
        self._results = Results(KEPT_BY)
        self.runs: dict[str, tuple[tuple[str, ...], TestRun]] = {}
        for file in () if fresh else files:
            found = self._results.load(run_tests, (file,))
            if found is not None:
                self.runs[file] = found

    def names(self, file: str) -> tuple[str, ...]:
        """Tests of a file that need not be run again."""
        return self.runs[file][0] if file in self.runs else ()

    def add(self, names: tuple[str, ...], run: TestRun) -> None:
        """Keep what further tests of a file have given, if nothing else can change it."""
        if run.keepable:
            file = _file(names[0])
            before, known = self.runs.get(file, ((), TestRun()))
            self.runs[file] = (*before, *names), known.joined(run)
            self._results.store(run_tests, (file,), self.runs[file])

    def outcomes(self) -> list[executor.Outcome]:
        """As of one task for each file."""
        return [
            executor.Outcome(Task(_title([*names]), run_tests, (names,)), run, kept=True)
            for names, run in self.runs.values()
        ]


def collect(paths: tuple[str, ...]) -> list[str]:
    """Names of the campaign's tests in files, folders or tests by name.

    :raises InputError: if no test is found.
    """
    output = _pytest(["--collect-only", "-q", "-m", "campaign", *paths])
    names = [line for line in output.stdout.splitlines() if re.match(r"\S+\.py::", line)]
    if not names:
        raise InputError(f"no test of the campaign in {' '.join(paths)}: {_said(output)}")
    return names


def group(names: list[str], seconds: Mapping[str, float]) -> list[Task]:
    """Tests as tasks, the dearest file first, and of a file the dearest task."""
    groups: list[tuple[float, list[str]]] = []
    for name in names:
        cost = seconds.get(name, OTHERS)
        if groups:
            total, tests = groups[-1]
            same = _file(tests[0]) == _file(name)
            if same and total + cost <= 60 * MINUTES:
                groups[-1] = total + cost, [*tests, name]
                continue
        groups.append((cost, [name]))
    whole: dict[str, float] = {}
    for total, (first, *_) in groups:
        whole[_file(first)] = whole.get(_file(first), 0) + total
    groups.sort(key=lambda entry: (-whole[_file(entry[1][0])], _file(entry[1][0]), -entry[0]))
    return [Task(_title(tests), run_tests, (tuple(tests),)) for _, tests in groups]


def _file(name: str) -> str:
    return name.partition("::")[0]


def _title(tests: list[str]) -> str:
    file, _, test = tests[0].partition("::")
    short = file.removeprefix("tests/")
    return f"{short} {test}" if len(tests) == 1 else f"{short} {test} … ({len(tests)} tests)"


def run_tests(names: tuple[str, ...]) -> TestRun:
    """Run tests of the campaign by name, in a separate process.

    :raises ToolError: if pytest ended without a report.
    """
    with tempfile.TemporaryDirectory(prefix="campaign_") as folder:
        report, notes = Path(folder) / "report.xml", Path(folder) / "reads"
        notes.mkdir()
        before = _cpu_seconds()
        output = _pytest(
            ["-m", "campaign", "-q", "--tb=short", f"--junitxml={report}", *names],
            reads.environment(notes),
        )
        if not report.exists():
            raise ToolError(f"pytest ended with status {output.returncode}: {_said(output)}")
        run = TestRun(cpu_s=_cpu_seconds() - before, reads=reads.noted(notes))
        for case in xml.parse(report).iter("testcase"):
            name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            kinds = {child.tag: child.get("message", "") for child in case}
            if "skipped" in kinds:
                run.skipped.append(kinds["skipped"])
                continue
            run.seconds[name] = float(case.get("time", "0"))
            said = kinds.get("failure", kinds.get("error"))
            if said is not None:
                run.failures.append(f"{name}: {said.splitlines()[0] if said else 'failed'}")
    if output.returncode and not run.failures and not run.skipped:
        run.failures.append(f"pytest ended with status {output.returncode}")
    return run


def _cpu_seconds() -> float:
    """Processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _pytest(
    arguments: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def _said(output: subprocess.CompletedProcess) -> str:
    """The most informative line of pytest's output."""
    lines = [line for line in (output.stdout + output.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(.*: )?error: (?!usage)", line, re.I)]
    return (errors + lines[-1:] + ["no output"])[0]


def campaign_command(arguments) -> int:
    require_checkout("sim campaign")
    where = execution(arguments)
    # A task as well, whose result is kept: importing all tests takes a quarter of a minute.
    collecting = Task("collect", collect, (tuple(arguments.tests),))
    (found,) = executor.execute([collecting], sources=KEPT_BY, quiet=True, fresh=arguments.fresh)
    files = _by_file(found.result())
    record, hashes = Record.load(RECORD), reads.content()
    held = [
        file
        for file, tests in files.items()
        if not arguments.fresh and record.holds(file, tests, hashes, kept.tools())
    ]
    earlier = Kept((file for file in files if file not in held), fresh=arguments.fresh)
    names = [
        name
        for file, tests in files.items()
        if file not in held
        for name in tests
        if name not in earlier.names(file)
    ]
    tasks = group(names, record.seconds)
    if arguments.list:
        for task in tasks:
            expected = sum(record.seconds.get(name, OTHERS) for name in task.arguments[0])
            print(f"{expected:6.0f} s expected  {task.name}")
        _tell_held(files, held)
        return 0
    outcomes, failed = earlier.outcomes(), []

    def write_record() -> None:
        if arguments.record:
            whole = not any("::" in test for test in arguments.tests)
            _record(record, outcomes, files, whole=whole)

    write_record()
    run = executor.execute(tasks, sources=KEPT_BY, keep=lambda run: False, **where)
    for done, outcome in enumerate(run, 1):
        outcomes.append(outcome)
        if outcome.value is not None:
            earlier.add(outcome.task.arguments[0], outcome.value)
        if not sys.stderr.isatty():  # where there is no bar, such as in a log
            said = f"{done} of {len(tasks)}: {outcome.task.name}, {outcome.seconds:.0f} s"
            print(said, file=sys.stderr)
        complaints = _complaints(outcome)
        failed += complaints
        for line in complaints:
            tqdm.write(line)
        write_record()  # one file after another, so that an interrupted campaign leaves a record
    _summarise(outcomes)
    _tell_held(files, held)
    for line in failed:
        print(line)
    return 1 if failed else 0


def _by_file(names: list[str]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for name in names:
        files.setdefault(_file(name), []).append(name)
    return files


def _tell_held(files: dict[str, list[str]], held: list[str]) -> None:
    tests = sum(len(files[file]) for file in held)
    print(
        f"{tests} tests of {len(held)} of {len(files)} files passed when {RECORD.name} was written,"
        " and what they read has not changed"
    )


def _complaints(outcome: executor.Outcome) -> list[str]:
    """A line for each failure, and for a task of which no test has run."""
    if outcome.error is not None:
        return [f"FAIL {outcome.task.name}: {outcome.error}"]
    run = outcome.value
    if not run.seconds:
        reason = run.skipped[0] if run.skipped else "pytest found none"
        return [f"FAIL {outcome.task.name}: no test was run: {reason}"]
    return [f"FAIL {line}" for line in run.failures]


def _summarise(outcomes: list[executor.Outcome]) -> None:
    runs = [outcome.value for outcome in outcomes if outcome.value]
    measured = _seconds(outcomes)
    table = Table(title="The dearest tests of the campaign")
    table.add_column("test")
    table.add_column("s", justify="right")
    for name in sorted(measured, key=measured.__getitem__, reverse=True)[:DEAREST]:
        table.add_row(name.removeprefix("tests/"), f"{measured[name]:.0f}")
    print_table(table)
    failures = sum(len(run.failures) for run in runs)
    skipped = sum(len(run.skipped) for run in runs)
    before = sum(len(outcome.value.seconds) for outcome in outcomes if outcome.kept)
    print(
        f"{len(measured)} tests were run, {failures} failed, {skipped} skipped; "
        f"{sum(run.cpu_s for run in runs) / 60:.1f} minutes of processor time; "
        f"{before} of the tests by an earlier run"
    )


def _seconds(outcomes: list[executor.Outcome]) -> dict[str, float]:
    return {
        name: seconds
        for outcome in outcomes
        if outcome.value
        for name, seconds in outcome.value.seconds.items()
    }


def _record(
    record: Record, outcomes: list[executor.Outcome], files: dict[str, list[str]], *, whole: bool
) -> None:
    """Write the record; what was not run is as it was, and a file of which a test failed has none.

    whole
        Whether all campaign tests of the files were to run.
    """
    measured = _seconds(outcomes)
    seconds = record.seconds | {name: round(value) for name, value in measured.items()}
    record.seconds = {name: value for name, value in seconds.items() if value >= DEAR}
    by_file: dict[str, list[TestRun | None]] = {}
    for outcome in outcomes:
        file = _file(outcome.task.arguments[0][0])
        by_file.setdefault(file, []).append(outcome.value)
    for file, runs in by_file.items():
        if any(run is None or run.failures for run in runs):
            record.passed.pop(file, None)
        good = [run for run in runs if run is not None and run.passed and not run.skipped]
        ran = {name for run in good for name in run.seconds}
        if whole and len(good) == len(runs) and ran >= set(files[file]):
            read = frozenset[str]().union(*(run.reads for run in good))
            record.add(file, files[file], read, reads.content(), kept.tools())
    record.save()


def register(commands) -> None:
    """Add the subcommand to an argparse parser's subparsers."""
    command = commands.add_parser(
        "campaign",
        description=(
            "Run the tests marked `campaign`, the dearest file first, each group in a process of "
            "its own. Files of tests that the record has, and that read the same as then, are left "
            "out. Groups that passed are kept: a second run resumes with the others. "
            "Exits 1 if a test failed or if a group ran none."
        ),
    )
    command.add_argument(
        "tests",
        nargs="*",
        default=["tests"],
        metavar="TEST",
        help="files, folders or tests as pytest names them (default: all)",
    )
    command.add_argument("--list", action="store_true", help="list the tasks, and run nothing")
    command.add_argument(
        "--record",
        action="store_true",
        help=f"write which files passed, with what they read, to docs/results/{RECORD.name}",
    )
    add_execution(command)
    command.set_defaults(run=campaign_command)
