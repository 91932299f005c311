"""Element-wise functions of a vector by new centroids for its indices (KLLM, section III-C1)."""

import dataclasses

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component
from hw.kllm.element_function import ElementFunction, ElementFunctionParameters
from hw.kllm.orizuru_unit import select
from hw.kllm.product_table import ProductTableParameters
from hw.parameters import Parameters, require


@dataclasses.dataclass(frozen=True)
class CodebookReplacementParameters(Parameters):
    """
    activation_bits, weight_bits
        nA and nW.
    lanes
        Values in one beat.
    """

    activation_bits: int = 4
    weight_bits: int = 4
    lanes: int = 16

    def __post_init__(self):
        for name in ("activation_bits", "weight_bits"):
            value = getattr(self, name)
            require(1 <= value <= 8, f"{name} must be between 1 and 8", value)
        require(self.lanes >= 1, "lanes must be at least 1", self.lanes)

    @classmethod
    def presets(cls) -> dict[str, "CodebookReplacementParameters"]:
        return {"small": cls(2, 1, 4), "default": cls()}

    @property
    def function(self) -> ElementFunctionParameters:
        return ElementFunctionParameters(stages=4)

    @property
    def multiplication(self) -> FloatMultiplyParameters:
        return FloatMultiplyParameters(stages=1)

    @property
    def centroids(self) -> int:
        """2^nA."""
        return 1 << self.activation_bits

    @property
    def rebuild(self) -> int:
        """Cycles from a vector's scale being taken to its first beat, with a function."""
        return self.centroids + self.row_latency + 1

    @property
    def row_latency(self) -> int:
        """Cycles from a centroid to its row."""
        return self.function_latency + 2 * self.multiplication.stages

    @property
    def latency(self) -> int:
        """Cycles from a beat with one outlier to the same with the outlier's function."""
        return 1 + self.function_latency

    @property
    def function_latency(self) -> int:
        """Cycles from a centroid or an outlier to its function, through a register in front."""
        return 1 + self.function.stages

    def cycles(self, outliers: list[list[int]], replace: list[bool]) -> int:
        """Cycles from the first scale offered to the last beat taken, when nothing stalls.

        For vectors of beats with so many outliers, with a function or without.
        """
        total = 0
        for beats, own in zip(outliers, replace, strict=True):
            waits = sum(count + self.latency - 1 for count in beats if own and count)
            total += (self.rebuild if own else 1) + len(beats) + waits
        return total

    @property
    def order_layout(self) -> data.StructLayout:
        """What to make of a vector.

        ``replace`` whether to apply the function ``op`` (:class:`Function`), to the activations'
        ``centroids``, for the weights' ``codebook`` (FP16); ``bank`` of the table.
        """
        return data.StructLayout(
            {
                "replace": 1,
                "op": 2,
                "bank": 1,
                "centroids": data.ArrayLayout(FP16.width, self.centroids),
                "codebook": data.ArrayLayout(FP16.width, 1 << self.weight_bits),
            }
        )

    @property
    def write_layout(self) -> data.StructLayout:
        """A row of the table, as :class:`ProductTable` takes it."""
        bins = 1 << self.activation_bits + self.weight_bits
        return ProductTableParameters(self.activation_bits, self.weight_bits, bins).write_layout

    @property
    def beat_layout(self) -> data.StructLayout:
        """``values`` FP16, ``outlier`` which are outliers, ``last`` of the vector."""
        values = data.ArrayLayout(FP16.width, self.lanes)
        return data.StructLayout({"values": values, "outlier": self.lanes, "last": 1})


class CodebookReplacement(Component):
    """Rebuild a table of products for f of a vector, and apply f to the vector's outliers.

        row i = round16(f(round16(s_a centroid[i])) codebook[j])  for all j

    ::

        s_a, centroids ─→ × ─→ ElementFunction ─→ × codebook ─→ write
        i ─→ outliers ─────↗                 └─→ outliers ─→ o

    The vector's scale is then in the products, so that 1 takes its place. Vectors without a
    function pass as they are.

    Latency: a vector's first beat is taken 2^nA + 8 cycles after its scale, or 1 without a
    function. Throughput: a beat each cycle, n + 6 cycles for one with n outliers and a function.

    Handshake: ``i.ready`` follows ``o.ready``, ``o.valid`` follows ``i.valid`` combinationally.
    All of the rebuilding stands still while a row is not taken. An order is taken with the
    vector's last beat.

    Members
    -------
    order : :py:`In(stream.Signature(parameters.order_layout))`
        What to do, for each vector.
    scale : :py:`In(stream.Signature(16))`
        FP16, for each vector.
    i : :py:`In(stream.Signature(parameters.beat_layout))`
        Vectors.
    write : :py:`Out(stream.Signature(parameters.write_layout))`
        Rows of the table in order.
    o : :py:`Out(stream.Signature(parameters.beat_layout))`
        Vectors with their outliers replaced.
    """

    summary = "A function of a vector by new centroids and products"
    source = "KLLM, section III-C1"

    def __init__(self, parameters: CodebookReplacementParameters):
        p = self._parameters = parameters
        super().__init__(
            {
                "order": In(stream.Signature(p.order_layout)),
                "scale": In(stream.Signature(FP16.width)),
                "i": In(stream.Signature(p.beat_layout)),
                "write": Out(stream.Signature(p.write_layout)),
                "o": Out(stream.Signature(p.beat_layout)),
            }
        )

    @property
    def parameters(self) -> CodebookReplacementParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p, order = self._parameters, self.order.payload
        m.submodules.function = function = ElementFunction(p.function)
        rebuilding = Signal()
        passing = Signal()
        s_a = Signal(FP16.width, reset_less=True)
        # Kept here, as an order may come straight out of a memory.
        has_function = Signal(reset_less=True)
        op = Signal(order.op.shape(), reset_less=True)
        scaled, built = self._rebuild(m, function, rebuilding, s_a)
        value = self._pass(m, function, passing, has_function)
        x = Signal(FP16.width, reset_less=True)
        with m.If(function.enable):
            m.d.sync += x.eq(Mux(passing, value, scaled))
        m.d.comb += [function.op.eq(op), function.x.eq(x)]
        ended = Signal()
        m.d.comb += [
            ended.eq(self.o.valid & self.o.ready & self.o.payload.last),
            self.order.ready.eq(ended),
        ]
        with m.FSM():
            with m.State("WAIT"):
                m.d.comb += self.scale.ready.eq(self.order.valid)
                with m.If(self.scale.valid & self.order.valid):
                    m.d.sync += s_a.eq(self.scale.payload)
                    m.d.sync += [has_function.eq(order.replace), op.eq(order.op)]
                    m.next = "PASS"
                    with m.If(order.replace):
                        m.next = "REBUILD"
            with m.State("REBUILD"):
                m.d.comb += rebuilding.eq(1)
                with m.If(built):
                    m.next = "PASS"
            with m.State("PASS"):
                m.d.comb += passing.eq(1)
                with m.If(ended):
                    m.next = "WAIT"
        return m

    def _rebuild(self, m: Module, function, rebuilding: Signal, s_a: Signal):
        """Write rows; a centroid for the function, and whether the last row is being written."""
        p, order = self._parameters, self.order.payload
        number = Signal(range(p.centroids + 1))  # of the centroid that sets out
        row = Signal(range(p.centroids))
        under_way = Signal(p.row_latency)
        leaves = Signal()
        built = Signal()
        advance = Signal()
        m.submodules.scale_centroid = scaled = FloatMultiply(p.multiplication)
        m.d.comb += [
            advance.eq(~self.write.valid | self.write.ready),
            leaves.eq(rebuilding & (number != p.centroids)),
            scaled.enable.eq(advance),
            function.enable.eq(advance),
            scaled.a.eq(s_a),
            scaled.b.eq(Array(order.centroids)[number[:-1]]),
            self.write.valid.eq(under_way[-1]),
            self.write.payload.bank.eq(order.bank),
            self.write.payload.row.eq(row),
            built.eq(self.write.valid & advance & (row == p.centroids - 1)),
        ]
        with m.If(advance):
            m.d.sync += [under_way.eq(under_way << 1 | leaves), number.eq(number + leaves)]
            m.d.sync += row.eq(row + self.write.valid)
        with m.If(~rebuilding):
            m.d.sync += number.eq(0)
        for column, centroid in enumerate(order.codebook):
            multiply = FloatMultiply(p.multiplication)
            m.submodules[f"multiply_{column}"] = multiply
            m.d.comb += [
                multiply.enable.eq(advance),
                multiply.a.eq(function.o),
                multiply.b.eq(centroid),
                self.write.payload.values[column].eq(multiply.o),
            ]
        return scaled.o, built

    def _pass(self, m: Module, function, passing: Signal, has_function: Signal) -> Signal:
        """Replace the outliers of each beat; the one that sets out."""
        p, i, o = self._parameters, self.i, self.o
        gone = Signal(p.lanes)  # outliers of this beat that have set out, and that are back
        back = Signal(p.lanes)
        left = Signal(p.lanes)
        chosen = Signal(p.lanes)
        complete = Signal()
        taken = Signal()
        m.d.comb += [
            left.eq(
                i.payload.outlier & ~gone & (passing & i.valid & has_function).replicate(p.lanes)
            ),
            chosen.eq(Cat(left[n] & ~left[:n].any() for n in range(p.lanes))),
            complete.eq(~has_function | ((i.payload.outlier & ~back) == 0)),
            o.valid.eq(i.valid & passing & complete),
            i.ready.eq(o.ready & passing & complete),
            taken.eq(i.valid & i.ready),
            o.payload.outlier.eq(i.payload.outlier),
            o.payload.last.eq(i.payload.last),
        ]
        arriving = chosen
        for stage in range(p.function_latency):
            later = Signal(p.lanes, name=f"under_way_{stage}")
            m.d.sync += later.eq(arriving)
            arriving = later
        m.d.sync += [
            gone.eq(Mux(taken, 0, gone | chosen)),
            back.eq(Mux(taken, 0, back | arriving)),
        ]
        for lane, value in enumerate(i.payload.values):
            kept = Signal(FP16.width, name=f"replaced_{lane}", reset_less=True)
            with m.If(arriving[lane]):
                m.d.sync += kept.eq(function.o)
            m.d.comb += o.payload.values[lane].eq(Mux(back[lane], kept, value))
        return select(chosen, list(i.payload.values))
