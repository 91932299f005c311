"""Testbench of UniCAIM's core: jobs in, outputs, reports and the memory's rows out.

A transaction is a job. Results do not depend on timing, so any stalls, latency and order of the
memory may be used.
"""

from hw.unicaim.core_parameters import UnicaimCoreParameters
from sim.testbenches.jobs import JobsTestbench
from sim.testbenches.unicaim.core_jobs import random_jobs, real_jobs


class UnicaimCoreTestbench(JobsTestbench):
    random, real = staticmethod(random_jobs), staticmethod(real_jobs)

    def default_vectors(self, parameters: UnicaimCoreParameters) -> int:
        return 80 if parameters.d <= 8 else 48 + parameters.rows


testbench = UnicaimCoreTestbench()
