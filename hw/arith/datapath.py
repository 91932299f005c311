"""Base of the arithmetic units: plain operand ports, a fixed latency, optional pipeline stages."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

from amaranth.hdl import Module, Signal, Value
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FloatFormat, find_format
from hw.component import Component
from hw.parameters import Parameters, require
from hw.ports import Ports, wire_in, wire_out


@dataclasses.dataclass(frozen=True)
class DatapathParameters(Parameters):
    """
    stages
        Pipeline stages, the last one with its registers at the output; 0 is combinational.
    """

    CUTS: ClassVar[tuple[tuple[str, ...], ...]] = ((), ("result",))
    """For each number of stages, the named points of the datapath that have registers."""

    stages: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self):
        most = len(self.CUTS) - 1
        require(0 <= self.stages <= most, f"stages must be between 0 and {most}", self.stages)

    @property
    def latency(self) -> int:
        return self.stages

    def cycles(self, operations: int) -> int:
        """Cycles from the first operands to the last result, both included, without stalls."""
        return operations + self.stages


@dataclasses.dataclass(frozen=True)
class FloatParameters(DatapathParameters):
    """
    format
        ``fp16``, ``bf16``, ``fp32``, ``fp8_e4m3`` or ``fp8_e5m2``.
    flush_subnormals
        Whether subnormal operands and results count as zeros of their sign.
    """

    format: str = "fp16"
    flush_subnormals: bool = False

    PIPELINED: ClassVar[int] = 2
    """Stages of the pipelined presets: enough for 1 GHz in a 45 nm library."""

    def __post_init__(self):
        super().__post_init__()
        find_format(self.format)

    @property
    def float_format(self) -> FloatFormat:
        return find_format(self.format)

    @classmethod
    def presets(cls) -> Mapping[str, Self]:
        return {
            "fp16": cls(),
            "fp16_pipelined": cls(stages=cls.PIPELINED),
            "bf16": cls(format="bf16"),
            "fp32": cls(format="fp32"),
            "fp8_e4m3": cls(format="fp8_e4m3"),
        }


D = TypeVar("D", bound=DatapathParameters)


class Datapath(Component[D]):
    """Base of the arithmetic units.

    Latency: `stages` cycles. Throughput: one result per cycle. There is no handshake: every
    register is updated in the cycles in which ``enable`` is high, and none is reset.
    :class:`hw.arith.streamed.Streamed` puts a unit between two streams.

    A subclass declares its operands and results in :meth:`operation`.
    """

    def ports(self) -> Ports:
        declared = self.operation()
        inputs = {name: port for name, port in declared.items() if port.member.flow is In}
        outputs = {name: port for name, port in declared.items() if name not in inputs}
        # A combinational unit has neither clock nor enable.
        enable = wire_in(1, "Moves every register on; high unless connected.", init=1)
        return inputs | ({"enable": enable} if self.parameters.stages else {}) | outputs

    @abc.abstractmethod
    def operation(self) -> Ports:
        """Operands and results, by name."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands."""
        return tuple(n for n, port in self.operation().items() if port.member.flow is In)

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the results."""
        return tuple(n for n, port in self.operation().items() if port.member.flow is Out)

    def registers(self, m: Module) -> "Registers":
        """The pipeline registers; `elaborate` calls them at each point that may have some."""
        chosen = self.parameters.CUTS[self.parameters.stages]
        return Registers(m, chosen, self.enable if self.parameters.stages else None)


F = TypeVar("F", bound=FloatParameters)


class FloatFunction(Datapath[F]):
    """Base of the functions ``o`` of one floating-point number ``x``, in the same format."""

    result: ClassVar[str]
    """What ``o`` is, in words."""

    def operation(self) -> Ports:
        fmt = self.parameters.float_format
        return {"x": wire_in(fmt, "Operand."), "o": wire_out(fmt, self.result)}


Record = TypeVar("Record", bound=Any)
"""A dataclass whose fields are values."""


class Registers:
    """Pipeline registers at chosen points of a datapath.

    ``total, sign = registers("sum", total=total, sign=sign)`` returns registers of the values if
    the datapath has a pipeline stage at the point ``sum``, else the values. All values that are
    used after a point must pass through it.
    """

    def __init__(self, m: Module, chosen: tuple[str, ...], enable: Signal | None):
        self._m, self._chosen, self._enable = m, chosen, enable

    def __call__(self, point: str, **values: Value):
        """The values after `point`, as a tuple in their order; a single value as itself."""
        if point in self._chosen:
            # Verilog has no registers of zero width.
            values = {n: self._register(point, n, v) if len(v) else v for n, v in values.items()}
        return next(iter(values.values())) if len(values) == 1 else tuple(values.values())

    def record(self, point: str, values: Record) -> Record:
        """The same for all fields of a dataclass of values, or None where a field is not used."""
        fields = {f.name: getattr(values, f.name) for f in dataclasses.fields(values)}
        fields = {name: value for name, value in fields.items() if value is not None}
        return dataclasses.replace(values, **dict(zip(fields, self(point, **fields), strict=True)))

    def _register(self, point: str, name: str, value: Value) -> Signal:
        register = Signal.like(value, name=f"{name}_{point}", reset_less=True, init=0)
        with self._m.If(self._enable):
            self._m.d.sync += register.eq(value)
        return register


def without(values: Record, *names: str) -> Record:
    """`values` with None in the fields `names`, which :meth:`Registers.record` then leaves out."""
    unused: dict[str, Any] = dict.fromkeys(names)
    return dataclasses.replace(values, **unused)


def namer(m: Module, prefix: str = ""):
    """A function that assigns a value to a named signal, so that its logic is not duplicated."""

    def named(name: str, value: Value) -> Signal:
        signal = Signal.like(value, name=prefix + name)
        m.d.comb += signal.eq(value)
        return signal

    return named
