"""A picture of the cache of VEDA's core in a run."""

import numpy as np

from sim.core.stimulus import ShownRun

MOST = 40
"""Steps that are shown."""


def cache_over_time(run: ShownRun, figure, command: str, report: str) -> str:
    """Which tokens are in the cache after each step, from the RTL's reports.

    command, report
        Names of the streams; a command of a step has the flag `restart`, its report `evict` and the
        `position` evicted.
    """
    restart = run.inputs[command]["restart"].astype(bool)
    reports = run.outputs[report]
    # The longest sequence, from its restart to the next.
    starts = [*np.flatnonzero(restart), len(restart)]
    first = max(range(len(starts) - 1), key=lambda i: starts[i + 1] - starts[i])
    steps = range(starts[first], min(starts[first + 1], starts[first] + MOST))
    left = {
        int(reports["position"][step]): step - steps[0] for step in steps if reports["evict"][step]
    }
    axes = figure.subplots()
    for token in range(len(steps)):
        end = left.get(token, len(steps))
        axes.broken_barh([(token, end - token)], (token - 0.4, 0.8), color="C0")
        if token in left:
            axes.broken_barh([(end, 0.8)], (token - 0.4, 0.8), color="C1")
    axes.set_xlabel("step")
    axes.set_ylabel("token")
    axes.locator_params(integer=True)
    axes.invert_yaxis()
    return (
        f"A sequence of {len(steps)} steps: tokens in the cache (blue), and the step in which the"
        f" RTL reported one as evicted (orange), {len(left)} in all."
    )
