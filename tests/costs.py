"""What the test files cost: the dearest ones, listed at the end of a run.

A pytest plugin of :mod:`tests.conftest`. CPU seconds are those of a test's process and of all that
it started and waited for; what fixtures of a module take counts for its first test.
"""

import collections
import resource

import pytest

DEAREST = 10

started = pytest.StashKey[float]()


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
        # Reports travel to the process that prints, whatever process ran the test.
        report.user_properties.append(("cpu_s", cpu() - item.stash[started]))
    return report


def pytest_terminal_summary(terminalreporter):
    files = collections.defaultdict(lambda: [0.0, 0.0, 0])
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            row = files[report.nodeid.partition("::")[0]]
            row[1] += report.duration
            if report.when == "teardown":
                row[0] += dict(report.user_properties).get("cpu_s", 0.0)
                row[2] += 1
    if len(files) < 2:
        return
    dearest = sorted(files.items(), key=lambda entry: -entry[1][0])[:DEAREST]
    terminalreporter.section(f"dearest {len(dearest)} of {len(files)} files")
    terminalreporter.write_line("   CPU s  wall s  tests")
    for name, (seconds, wall, tests) in dearest:
        terminalreporter.write_line(f"{seconds:8.1f}{wall:8.1f}{tests:7}  {name}")
    total = [sum(column) for column in zip(*files.values(), strict=True)]
    terminalreporter.write_line(f"{total[0]:8.1f}{total[1]:8.1f}{total[2]:7}  all")
