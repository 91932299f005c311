"""KLLM's functional unit: softmax, element-wise functions, 1 / RMS (KLLM, figure 6, Table I)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Module
from amaranth.lib import data, wiring

from hw.arith.float_format import FP16
from hw.arith.streamed import Streamed
from hw.component import Component
from hw.kllm.element_function import ElementFunction, ElementFunctionParameters, Function
from hw.kllm.inverse_rms import InverseRms, InverseRmsParameters
from hw.kllm.softmax import Softmax
from hw.kllm.softmax_parameters import SoftmaxParameters
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class FunctionalUnitParameters(Parameters):
    """
    lanes, length
        Softmax scores in one beat, and in the longest row.
    element_stages
        Pipeline stages of the element-wise function, 1 to 6.
    rms_stages
        Pipeline stages of the multiply-add of 1 / RMS, 1 to 4.
    """

    lanes: int = 8
    length: int = 1024
    element_stages: int = 4
    rms_stages: int = 3

    def __post_init__(self):
        stages = self.element_stages
        require(1 <= stages <= 6, "element_stages must be between 1 and 6", stages)
        stages = self.rms_stages
        require(1 <= stages <= 4, "rms_stages must be between 1 and 4", stages)
        # The parts' parameters check their own ranges when they are made.
        _ = self.softmax, self.rms

    @classmethod
    def presets(cls) -> dict[str, "FunctionalUnitParameters"]:
        return {
            "small": cls(lanes=2, length=16, element_stages=1, rms_stages=1),
            "default": cls(),
            "paper": cls(length=4096),
        }

    @cached_property
    def softmax(self) -> SoftmaxParameters:
        return SoftmaxParameters(self.lanes, self.length)

    @cached_property
    def element(self) -> ElementFunctionParameters:
        return ElementFunctionParameters(stages=self.element_stages)

    @cached_property
    def rms(self) -> InverseRmsParameters:
        return InverseRmsParameters(self.rms_stages)

    @property
    def latency(self) -> int:
        """Latency of the slowest of the three."""
        return max(self.softmax.latency, self.element.latency, self.rms.latency)

    def cycles(self, rows: list[int], elements: int, vectors: int) -> int:
        """Cycles from the first beats offered to the last one accepted, when nothing stalls."""
        return max(
            self.softmax.cycles(rows), self.element.cycles(elements), self.rms.cycles(vectors)
        )


class FunctionalUnit(Component[FunctionalUnitParameters]):
    """Softmax, element-wise function and 1 / RMS, one of each, each with its own streams.

    ============ ================= ======================================================
    part         streams           serves
    ============ ================= ======================================================
    softmax      scores → weights  attention; one head's while another head multiplies
    element      x → y             codebook replacement, outliers, any function of a number
    inverse RMS  sums → factor     normalisation, as a factor of the product's scale
    ============ ================= ======================================================

    They share no hardware, so that none waits for another: an exponential and a multiplier could be
    shared, less than a twentieth of the unit's area. For accuracy, latency, throughput, errors and
    handshake see :class:`Softmax`, :class:`ElementFunction`, here between streams, and
    :class:`InverseRms`.

    Examples
    --------
    >>> from hw.kllm.functional_unit import FunctionalUnitParameters
    >>> parameters = FunctionalUnitParameters(lanes=8, length=1024)
    >>> parameters.softmax.latency, parameters.element.latency, parameters.rms.latency
    (16, 4, 10)
    >>> parameters.cycles(rows=[64, 64], elements=100, vectors=1)
    270
    """

    summary = "Softmax, element-wise functions and 1 / RMS side by side"
    source = "KLLM, Fig. 6"

    def ports(self) -> Ports:
        p = self.parameters
        operand = data.StructLayout({"x": FP16, "op": Function})
        return {
            "scores": stream_in(p.softmax.input_layout, "Scores for a softmax."),
            "weights": stream_out(p.softmax.output_layout, "Their softmax."),
            "x": stream_in(operand, "Operands ``x`` of an element function ``op``."),
            "y": stream_out({"o": FP16}, "Its values."),
            "sums": stream_in(p.rms.input_layout, "Sums of squares, for the factor of RMSNorm."),
            "factor": stream_out(p.rms.output_layout, "These factors."),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.softmax = softmax = Softmax(p.softmax)
        m.submodules.element = element = Streamed(ElementFunction(p.element))
        m.submodules.inverse_rms = rms = InverseRms(p.rms)
        # No arbitration: each part has its streams, so none can wait for another one's consumer.
        for part, i, o in (
            (softmax, self.scores, self.weights),
            (element, self.x, self.y),
            (rms, self.sums, self.factor),
        ):
            wiring.connect(m, wiring.flipped(i), part.i)
            wiring.connect(m, part.o, wiring.flipped(o))
        return m
