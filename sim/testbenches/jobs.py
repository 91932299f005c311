"""Testbenches whose stimulus is a run of jobs, random or from a trace."""

from collections.abc import Callable
from typing import Any

import numpy as np

from golden.trace import Trace
from sim.core.stimulus import Stimulus


class JobsTestbench:
    """A testbench of jobs that two functions make.

    random
        Function of the parameters, the number of transactions and a generator, which returns jobs.
    real
        Function of the parameters, a trace, the number of transactions and a generator, which
        returns jobs and notes.
    """

    random: Callable[..., Any]
    real: Callable[..., tuple[Any, list[str]]]

    def stimulus(self, parameters, trace: Trace | None, vectors: int, seed: int) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            return self.random(parameters, vectors, rng).stimulus([])
        jobs, notes = self.real(parameters, trace, vectors, rng)
        return jobs.stimulus(notes)
