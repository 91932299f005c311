"""Testbench of the functional unit: the stimuli of its three parts at once."""

import numpy as np

from golden.trace import Trace
from hw.kllm.functional_unit import FunctionalUnitParameters
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm import element_function, inverse_rms, softmax

STREAMS = {"softmax": ("scores", "weights"), "element": ("x", "y"), "rms": ("sums", "factor")}


class FunctionalUnitTestbench:
    def default_vectors(self, parameters: FunctionalUnitParameters) -> int:
        return 4000 if parameters.lanes <= 2 else 1000

    def stimulus(
        self, parameters: FunctionalUnitParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        """Rows, elements and vectors as 1 : 16 : 3 or so; a transaction is one of them."""
        rows = max(1, vectors // 20)
        sums = max(1, 3 * vectors // 20)
        counts = {"softmax": rows, "element": max(1, vectors - rows - sums), "rms": sums}
        testbenches = {"softmax": softmax, "element": element_function, "rms": inverse_rms}
        stimuli = {
            name: testbenches[name].testbench.stimulus(
                getattr(parameters, name), trace, count, seed
            )
            for name, count in counts.items()
        }
        inputs, outputs, transaction_of, notes, before = {}, {}, {}, [], 0
        for name, stimulus in stimuli.items():
            i, o = STREAMS[name]
            inputs[i], outputs[o] = stimulus.inputs["i"], stimulus.outputs["o"]
            transaction_of[o] = np.asarray(stimulus.transaction_of["o"]) + before
            before += stimulus.transactions
            notes += stimulus.notes
        return Stimulus(
            inputs=inputs,
            outputs=outputs,
            transaction_of=transaction_of,
            transactions=before,
            cycles=max(stimulus.cycles for stimulus in stimuli.values()),
            notes=notes,
        )


testbench = FunctionalUnitTestbench()
