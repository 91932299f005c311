"""Bench of the functional unit: the jobs of its three parts at once."""

import numpy as np

from golden.trace import Trace
from hw.kllm.functional_unit import FunctionalUnitParameters
from sim.bench import Job
from sim.benches.kllm import element_function, inverse_rms, softmax

STREAMS = {"softmax": ("scores", "weights"), "element": ("x", "y"), "rms": ("sums", "factor")}


class FunctionalUnitBench:
    def default_vectors(self, parameters: FunctionalUnitParameters) -> int:
        return 4000 if parameters.lanes <= 2 else 1000

    def job(
        self, parameters: FunctionalUnitParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Job:
        """Rows, elements and vectors as 1 : 16 : 3 or so; a transaction is one of them."""
        rows = max(1, vectors // 20)
        sums = max(1, 3 * vectors // 20)
        counts = {"softmax": rows, "element": max(1, vectors - rows - sums), "rms": sums}
        benches = {"softmax": softmax, "element": element_function, "rms": inverse_rms}
        jobs = {
            name: benches[name].bench.job(getattr(parameters, name), trace, count, seed)
            for name, count in counts.items()
        }
        inputs, outputs, transaction_of, notes, before = {}, {}, {}, [], 0
        for name, job in jobs.items():
            i, o = STREAMS[name]
            inputs[i], outputs[o] = job.inputs["i"], job.outputs["o"]
            transaction_of[o] = np.asarray(job.transaction_of["o"]) + before
            before += job.transactions
            notes += job.notes
        return Job(
            inputs=inputs,
            outputs=outputs,
            transaction_of=transaction_of,
            transactions=before,
            cycles=max(job.cycles for job in jobs.values()),
            notes=notes,
        )

    def picture(self, parameters, trace, figure) -> None:
        """Its parts have pictures."""


bench = FunctionalUnitBench()
