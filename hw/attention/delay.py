"""Chains of registers that delay a value."""

from contextlib import nullcontext

from amaranth.hdl import Module, Signal, Value


def delay_line(
    m: Module,
    name: str,
    value: Value,
    cycles: int,
    *,
    enable: Signal | None = None,
    reset: bool = True,
) -> list[Signal]:
    """`value` 1, 2, ... `cycles` cycles later: registers ``{name}_1``, ``{name}_2``, ...

    enable
        Cycles in which they change, if not in each.
    reset
        Whether a reset clears the registers, as flags need and data do not.
    """
    registers = []
    for cycle in range(1, cycles + 1):
        register = Signal(len(value), name=f"{name}_{cycle}", reset_less=not reset)
        with nullcontext() if enable is None else m.If(enable):
            m.d.sync += register.eq(value)
        registers.append(register)
        value = register
    return registers


def delay(
    m: Module,
    name: str,
    value: Value,
    cycles: int = 1,
    *,
    enable: Signal | None = None,
    reset: bool = True,
) -> Signal:
    """The last register of a :func:`delay_line`: `value`, `cycles` cycles later."""
    return delay_line(m, name, value, cycles, enable=enable, reset=reset)[-1]
