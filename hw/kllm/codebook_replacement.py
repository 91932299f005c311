"""Element-wise functions of a vector by new centroids for its indices (KLLM, section III-C1)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data

from hw.arith.float_format import FP16
from hw.arith.float_multiply import FloatMultiply, FloatMultiplyParameters
from hw.component import Component
from hw.kllm.element_function import ElementFunction, ElementFunctionParameters, Function
from hw.kllm.orizuru_unit import select
from hw.kllm.product_table import ProductTableParameters
from hw.layout import FLAG, index, mask
from hw.parameters import Parameters, require
from hw.ports import Ports, stream_in, stream_out


@dataclasses.dataclass(frozen=True)
class CodebookReplacementParameters(Parameters):
    """
    activation_bits, weight_bits
        nA and nW, bits of an index.
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

    @cached_property
    def element_function(self) -> ElementFunctionParameters:
        return ElementFunctionParameters(stages=4)

    @cached_property
    def float_multiply(self) -> FloatMultiplyParameters:
        return FloatMultiplyParameters(stages=1)

    @property
    def centroids(self) -> int:
        """2^nA."""
        return 1 << self.activation_bits

    @property
    def rebuild(self) -> int:
        """Cycles from acceptance of a vector's scale to its first beat, with a function."""
        return self.centroids + self.row_latency + 1

    @property
    def row_latency(self) -> int:
        """Cycles from a centroid to its row of products."""
        return self.function_latency + 2 * self.float_multiply.stages

    @property
    def latency(self) -> int:
        """Cycles from a beat with one outlier to the same with the outlier's function."""
        return 1 + self.function_latency

    @property
    def function_latency(self) -> int:
        """Cycles from a centroid or an outlier to its function, through a register in front."""
        return 1 + self.element_function.stages

    def wait(self, outliers: int) -> int:
        """Cycles by which a function of `outliers` outliers delays their beat."""
        return outliers + self.latency - 1 if outliers else 0

    def cycles(self, outliers: list[list[int]], replace: list[bool]) -> int:
        """Cycles from the first scale offered to the last beat accepted, when nothing stalls.

        outliers
            The number in each beat of each vector.
        replace
            Whether a function is applied to the vector.
        """
        total = 0
        for beats, with_function in zip(outliers, replace, strict=True):
            waits = sum(map(self.wait, beats)) if with_function else 0
            total += (self.rebuild if with_function else 1) + len(beats) + waits
        return total

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """Command for a vector.

        ``replace``: apply the function ``op`` to the activations' ``centroids`` and multiply by the
        weights' ``codebook``; ``bank`` of the product table that is rebuilt.
        """
        return data.StructLayout(
            {
                "replace": FLAG,
                "op": Function,
                "bank": index(1),
                "centroids": data.ArrayLayout(FP16, self.centroids),
                "codebook": data.ArrayLayout(FP16, 1 << self.weight_bits),
            }
        )

    @cached_property
    def write_layout(self) -> data.StructLayout:
        """A row of the table, as :class:`ProductTable` accepts it."""
        bins = 1 << self.activation_bits + self.weight_bits
        return ProductTableParameters(self.activation_bits, self.weight_bits, bins).write_layout

    @cached_property
    def beat_layout(self) -> data.StructLayout:
        """``values``, mask ``outlier`` of those that are outliers, ``last`` beat of the vector."""
        values = data.ArrayLayout(FP16, self.lanes)
        return data.StructLayout({"values": values, "outlier": mask(self.lanes), "last": FLAG})


class CodebookReplacement(Component[CodebookReplacementParameters]):
    """Rebuild a table of products for f of a vector, and apply f to the vector's outliers.

        row i = round16(f(round16(s_a centroid[i])) codebook[j])  for all j

    ::

        s_a, centroids ─→ × ─→ ElementFunction ─→ × codebook ─→ write
        i ─→ outliers ─────↗                 └─→ outliers ─→ o

    The vector's scale is then part of the products, and a scale of 1 takes its place. Vectors
    without a function pass unchanged.

    Latency: a vector's first beat is accepted 2^nA + 8 cycles after its scale, or 1 without a
    function. Throughput: a beat each cycle, n + 6 cycles for one with n outliers and a function.

    Handshake: ``i.ready`` follows ``o.ready``, ``o.valid`` follows ``i.valid`` combinationally.
    The whole pipeline of rows stalls while a row is not accepted. A command is accepted with the
    vector's last beat.

    Examples
    --------
    >>> from hw.kllm.codebook_replacement import CodebookReplacementParameters
    >>> parameters = CodebookReplacementParameters(activation_bits=4, weight_bits=4, lanes=16)
    >>> parameters.rebuild  # cycles until the new table is complete
    24
    >>> parameters.cycles([[0, 2, 0]], [True]), parameters.cycles([[0, 2, 0]], [False])
    (34, 4)
    """

    summary = "A function of a vector by new centroids and products"
    source = "KLLM, section III-C1"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(p.command_layout, "One for each vector."),
            "scale": stream_in(FP16, "FP16, for each vector."),
            "i": stream_in(p.beat_layout, "Vectors."),
            "write": stream_out(p.write_layout, "Rows of the table in order of index."),
            "o": stream_out(p.beat_layout, "Vectors with f of their outliers in place of these."),
        }

    def elaborate(self, platform):
        m = Module()
        p, command = self.parameters, self.command.payload
        m.submodules.function = function = ElementFunction(p.element_function)
        rebuilding = Signal()
        passing = Signal()
        s_a = Signal(FP16.width, reset_less=True)
        # Registered, because a command may come straight out of a memory.
        has_function = Signal(reset_less=True)
        op = Signal(command.op.shape(), reset_less=True)
        # One function unit serves both: centroids while the table is rebuilt, then outliers.
        scaled, built = self._rebuild(m, function, rebuilding, s_a)
        value = self._pass(m, function, passing, has_function)
        x = Signal(FP16.width, reset_less=True)
        with m.If(function.enable):
            m.d.sync += x.eq(Mux(passing, value, scaled))
        m.d.comb += [function.op.eq(op), function.x.eq(x)]
        # A vector ends with its last beat, and with it the command.
        ended = Signal()
        m.d.comb += [
            ended.eq(self.o.valid & self.o.ready & self.o.payload.last),
            self.command.ready.eq(ended),
        ]
        with m.FSM():
            # A vector's scale and command come together: the function is applied to scaled
            # centroids.
            with m.State("WAIT"):
                m.d.comb += self.scale.ready.eq(self.command.valid)
                with m.If(self.scale.valid & self.command.valid):
                    m.d.sync += s_a.eq(self.scale.payload)
                    m.d.sync += [has_function.eq(command.replace), op.eq(command.op)]
                    m.next = "PASS"
                    with m.If(command.replace):
                        m.next = "REBUILD"
            # A function of 16 values instead of K: f(s_a c) for each centroid c makes a new product
            # table, and the indices remain as they are (KLLM, III-C1).
            with m.State("REBUILD"):
                m.d.comb += rebuilding.eq(1)
                with m.If(built):
                    m.next = "PASS"
            # Outliers have no index, so the function is applied to each one itself.
            with m.State("PASS"):
                m.d.comb += passing.eq(1)
                with m.If(ended):
                    m.next = "WAIT"
        return m

    def _rebuild(self, m: Module, function, rebuilding: Signal, s_a: Signal):
        """Write the table's rows.

        Returns the scaled centroid for the function, and whether the last row is accepted.
        """
        p, command = self.parameters, self.command.payload
        number = Signal(range(p.centroids + 1))  # of the next centroid to issue
        row = Signal(range(p.centroids))
        under_way = Signal(p.row_latency)  # pipeline stages that hold a centroid
        issue = Signal()
        built = Signal()
        advance = Signal()
        m.submodules.scale_centroid = scaled = FloatMultiply(p.float_multiply)
        m.d.comb += [
            advance.eq(~self.write.valid | self.write.ready),
            issue.eq(rebuilding & (number != p.centroids)),
            scaled.enable.eq(advance),
            function.enable.eq(advance),
            scaled.a.eq(s_a),
            scaled.b.eq(Array(command.centroids)[number[:-1]]),
            self.write.valid.eq(under_way[-1]),
            self.write.payload.bank.eq(command.bank),
            self.write.payload.row.eq(row),
            built.eq(self.write.valid & advance & (row == p.centroids - 1)),
        ]
        # One valid bit for each stage of the pipeline; the row number counts rows written.
        with m.If(advance):
            m.d.sync += [under_way.eq(under_way << 1 | issue), number.eq(number + issue)]
            m.d.sync += row.eq(row + self.write.valid)
        with m.If(~rebuilding):
            m.d.sync += number.eq(0)
        # f(s_a centroid) times each centroid of the weights makes the row.
        for column, centroid in enumerate(command.codebook):
            multiply = FloatMultiply(p.float_multiply)
            m.submodules[f"multiply_{column}"] = multiply
            m.d.comb += [
                multiply.enable.eq(advance),
                multiply.a.eq(function.o),
                multiply.b.eq(centroid),
                self.write.payload.values[column].eq(multiply.o),
            ]
        return scaled.o, built

    def _pass(self, m: Module, function, passing: Signal, has_function: Signal) -> Signal:
        """Send each outlier of a beat through the function, one a cycle, and wait for all.

        Returns the outlier for the function.
        """
        p, i, o = self.parameters, self.i, self.o
        issued = Signal(p.lanes)  # outliers of this beat sent to the function
        returned = Signal(p.lanes)  # outliers of this beat whose function is known
        pending = Signal(p.lanes)
        chosen = Signal(p.lanes)  # one-hot: the first pending one
        complete = Signal()
        taken = Signal()
        m.d.comb += [
            pending.eq(
                i.payload.outlier & ~issued & (passing & i.valid & has_function).replicate(p.lanes)
            ),
            chosen.eq(Cat(pending[n] & ~pending[:n].any() for n in range(p.lanes))),
            complete.eq(~has_function | ((i.payload.outlier & ~returned) == 0)),
            o.valid.eq(i.valid & passing & complete),
            # A beat is accepted when all of its functions are known, so no beat needs a place to
            # wait in.
            i.ready.eq(o.ready & passing & complete),
            taken.eq(i.valid & i.ready),
            o.payload.outlier.eq(i.payload.outlier),
            o.payload.last.eq(i.payload.last),
        ]
        # The lane of each outlier accompanies it through the function's pipeline.
        arriving = chosen
        for stage in range(p.function_latency):
            later = Signal(p.lanes, name=f"under_way_{stage}")
            m.d.sync += later.eq(arriving)
            arriving = later
        m.d.sync += [
            issued.eq(Mux(taken, 0, issued | chosen)),
            returned.eq(Mux(taken, 0, returned | arriving)),
        ]
        # A returned function waits in its lane's register until the beat is complete.
        for lane, value in enumerate(i.payload.values):
            replaced = Signal(FP16.width, name=f"replaced_{lane}", reset_less=True)
            with m.If(arriving[lane]):
                m.d.sync += replaced.eq(function.o)
            m.d.comb += o.payload.values[lane].eq(Mux(returned[lane], replaced, value))
        return select(chosen, list(i.payload.values))
