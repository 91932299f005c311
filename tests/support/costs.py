"""CPU time of tests: dear ones run in ``make campaign``, and a run ends with the dearest files.

Some of the campaign run in `.ci/run` too, after the suite.

A pytest plugin of :mod:`tests.conftest`. ``dear.txt`` lists the tests that took more than DEAR CPU
seconds when they were measured, by ``python -m pytest -n 2 --dist loadfile --record-costs`` on a
machine that did nothing else; they get the mark `campaign`. ALWAYS are those that stay in the suite
whatever they cost. CPU seconds are those of a test's process and of all that it started and waited
for; what fixtures of a module take, and designs compiled for several tests, count for the first.
"""

import collections
import re
import resource
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "dear.txt"
DEAR_TESTS = frozenset(LIST.read_text().splitlines())
DEAR = 0.6
# The examples; every block on any trace, every stall, in Icarus; its
# sidecar; the first of several tests that share compiled designs; unbounded proofs. The
# dearest of all these are in the list by hand: of the harness' tests, blocks inside a core that the
# suite compiles anyway, or whose own tests compile them; Icarus has those in the suite.
ALWAYS = re.compile(
    r"^tests/examples/|test_run.py::test_(text_|json_)"
    r"|test_every_block_harness.py::"
    r"|test_every_block.py::"
    r"|test_kllm_core.py::test_small|test_veda_core.py::test_real|formal.py::test_proof"
    r"|test_compare.py::test_rows_of"
)
# Of the campaign, what `.ci/run` runs after the suite, by the mark `ci`: what looks at generated
# text alone, what the suite has in Icarus, and a board's protocol.
CI = re.compile(
    r"test_lint.py::test_the_first|^tests/hw/test_examples.py::|test_every_block.py::.*-verilator\]"
    r"|^tests/boards/test_(board|cable).py::|test_export.py::test_sidecar_agrees"
)
DEAREST = 10
# They begin first, or one of two processes would be left with them at the end.
FIRST = (
    *("sim/test_every_block_harness", "sim/test_every_block", "hw/test_export"),
    *("kllm/test_kllm_engine", "lad/test_lad_tile", "boards/test_board", "sim/commands/test_lint"),
    *("sim/generate/test_generate_lad", "sim/generate/test_generate"),
)

started = pytest.StashKey[float]()


def pytest_addoption(parser):
    parser.addoption(
        "--record-costs", action="store_true", help=f"add dear tests to {LIST.name}, and drop none"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    first = tuple(f"tests/{name}.py" for name in FIRST)
    items.sort(key=lambda item: not item.nodeid.startswith(first))
    for item in items:
        if item.nodeid in DEAR_TESTS or item.get_closest_marker("campaign"):
            item.add_marker(pytest.mark.campaign)
        elif CI.search(item.nodeid):
            item.add_marker(pytest.mark.campaign)
            item.add_marker(pytest.mark.ci)


def cpu() -> float:
    """CPU seconds of this process and of its ended children."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in (own, children))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[started] = cpu()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown" and started in item.stash:
        # The report is sent to the process that prints the summary.
        report.user_properties.append(("cpu_s", cpu() - item.stash[started]))
    return report


def pytest_terminal_summary(terminalreporter, config):
    files: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0])
    tests: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            row = files[report.nodeid.partition("::")[0]]
            row[1] += report.duration
            if report.when == "teardown":
                tests[report.nodeid] = _cpu_s(report)
                row[0] += tests[report.nodeid]
                row[2] += 1
    if config.option.record_costs:
        _record(tests)
    if len(files) < 2:
        return
    dearest = sorted(files.items(), key=lambda entry: -entry[1][0])[:DEAREST]
    terminalreporter.section(f"dearest {len(dearest)} of {len(files)} files")
    terminalreporter.write_line("   CPU s  wall s  tests")
    for name, (seconds, wall, number) in dearest:
        terminalreporter.write_line(f"{seconds:8.1f}{wall:8.1f}{number:7}  {name}")
    total = [sum(column) for column in zip(*files.values(), strict=True)]
    terminalreporter.write_line(f"{total[0]:8.1f}{total[1]:8.1f}{total[2]:7}  all")


def _cpu_s(report: pytest.TestReport) -> float:
    properties = dict(report.user_properties)
    seconds = properties.get("cpu_s", 0.0)
    return seconds if isinstance(seconds, float) else 0.0


def _record(tests: dict[str, float]) -> None:
    found = {name for name, seconds in tests.items() if seconds > DEAR and not ALWAYS.search(name)}
    LIST.write_text("\n".join(sorted(found | DEAR_TESTS)) + "\n")
