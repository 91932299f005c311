"""The cocotb test that runs a stimulus and notes streams' flags. It runs inside the simulator.

It is :mod:`sim.drivers.cocotb.testbench`'s test with cycles that a second coroutine watches. The
stimulus' description has the names of streams under ``watched``; in a file of that name, beside the
outcome, each has its cycles with a transfer, and those in which it waited.
"""

import pickle
from functools import reduce

import cocotb

from sim.drivers.cocotb import testbench

(DESCRIPTION,) = testbench.DESCRIPTIONS


def flags(name: str):
    """Handles of a stream's valid and ready."""
    *path, stream = name.split(".")
    module = reduce(getattr, path, cocotb.top)
    return getattr(module, f"{stream}__valid"), getattr(module, f"{stream}__ready")


class NotedCycles(testbench.WatchedCycles):
    """Notes the flags at every clock edge since the last restart, and writes them at the end."""

    def __init__(self, clock=None):
        self._noted: dict[str, tuple[list[int], list[int]]] = {}
        super().__init__(clock)
        cocotb.start_soon(self._note())

    def restart(self) -> None:
        super().restart()
        self._noted.update({name: ([], []) for name in DESCRIPTION["watched"]})

    async def _note(self) -> None:
        handles = {name: flags(name) for name in DESCRIPTION["watched"]}
        try:
            while True:
                await super().trigger()
                for name, (valid, ready) in handles.items():
                    if str(valid.value) == "1":
                        beats, waits = self._noted[name]
                        (beats if str(ready.value) == "1" else waits).append(self.cycle)
        finally:
            testbench.STIMULI.with_name("watched").write_bytes(pickle.dumps(self._noted))


testbench.WatchedCycles = NotedCycles  # type: ignore[misc, assignment]
run = testbench.run
