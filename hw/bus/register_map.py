"""Registers and their fields as data: hardware, C header, drivers and descriptions follow from it.

A :class:`RegisterMap` is a list of registers. A register has 32 or 64 bits; one of 64 bits is two
words on the bus, the low word first. :func:`hw.bus.device_map.device_map` makes the map of a block.

    >>> on = RegisterField("on", 0, 1, READ_WRITE, "The lamp is on.")
    >>> lamp = RegisterMap((Register("lamp", 0, (on,), "A lamp."),))
    >>> [(word.name, word.offset) for word in lamp.words], lamp.address_bits
    ([('lamp', 0)], 12)
"""

import dataclasses

from amaranth.lib import enum

from hw.parameters import require

READ_WRITE, READ_ONLY, CLEAR, PULSE, CONSTANT = "rw", "ro", "w1c", "pulse", "constant"
ACCESSES = {
    READ_WRITE: "Software writes it, hardware reads it.",
    READ_ONLY: "Hardware sets it.",
    CLEAR: "Hardware sets bits, software clears them by writing 1.",
    PULSE: "Reads 0; writing 1 acts once.",
    CONSTANT: "Never changes.",
}
"""Ways in which software and hardware use a field, in words."""


@dataclasses.dataclass(frozen=True)
class RegisterField:
    """Bits of a register.

    name
        Empty for the only field of its register.
    low, width
        Lowest bit and number of bits.
    access
        One of :data:`ACCESSES`.
    reset
        Value after reset; the value itself if constant.
    words
        One sentence.
    codes
        Enumeration of its values, if it has one.
    """

    name: str
    low: int
    width: int
    access: str
    words: str
    reset: int = 0
    codes: type[enum.Enum] | None = None

    @property
    def mask(self) -> int:
        return ((1 << self.width) - 1) << self.low


@dataclasses.dataclass(frozen=True)
class Register:
    """A register of 32 or 64 bits.

    offset
        Bytes from the device's first register.
    """

    name: str
    offset: int
    fields: tuple[RegisterField, ...]
    words: str
    bits: int = 32

    def port(self, field: RegisterField) -> str:
        """Name of the field's port at the hardware."""
        return f"{self.name}_{field.name}" if field.name else self.name

    @property
    def reset(self) -> int:
        return sum(field.reset << field.low for field in self.fields)


@dataclasses.dataclass(frozen=True)
class Word:
    """32 bits of a register as the bus sees them.

    name
        The register's, with ``_low`` or ``_high`` for one of 64 bits.
    shift
        Its lowest bit in the register: 0 or 32.
    """

    name: str
    offset: int
    register: Register
    shift: int

    @property
    def parts(self) -> tuple[tuple[RegisterField, RegisterField], ...]:
        """Each of the register's fields that has bits here, and its part here, by the word's bits.

        ::

            register  63          52                    8          0
                       |    -     |         field       |    -     |
            words      |             high | low                    |
        """
        found = []
        for field in self.register.fields:
            low = max(field.low, self.shift)
            high = min(field.low + field.width, self.shift + 32)
            if low < high:
                width = high - low
                reset = (field.reset << field.low >> low) & ((1 << width) - 1)
                part = dataclasses.replace(field, low=low - self.shift, width=width, reset=reset)
                found.append((field, part))
        return tuple(found)

    @property
    def fields(self) -> tuple[RegisterField, ...]:
        """The parts of fields that it has, by the word's bits."""
        return tuple(part for _, part in self.parts)


@dataclasses.dataclass(frozen=True)
class RegisterMap:
    """Registers in the order of their offsets.

    :raises ParameterError: for registers or fields that overlap, or a pair that is misaligned.
    """

    registers: tuple[Register, ...]

    def __post_init__(self):
        end = 0
        for register in self.registers:
            size = register.bits // 8
            aligned = register.offset % size == 0 and register.offset >= end
            require(aligned, f"{register.name} must be behind the register before", register.offset)
            end = register.offset + size
            used = 0
            for field in register.fields:
                free = not used & field.mask and field.mask < 1 << register.bits
                require(free, f"{register.name} must have room for its fields", field.name)
                used |= field.mask
        names = [register.name for register in self.registers]
        require(len({*names}) == len(names), "registers must have different names", names)

    @property
    def address_bits(self) -> int:
        """Bits of a byte's address, 12 at least: a page."""
        last = self.registers[-1]
        return max(12, (last.offset + last.bits // 8 - 1).bit_length())

    @property
    def words(self) -> tuple[Word, ...]:
        """The registers as words of 32 bits, in the order of their offsets."""
        found = []
        for register in self.registers:
            if register.bits == 32:
                found.append(Word(register.name, register.offset, register, 0))
                continue
            for number, part in enumerate(("low", "high")):
                offset = register.offset + 4 * number
                found.append(Word(f"{register.name}_{part}", offset, register, 32 * number))
        return tuple(found)

    def find(self, name: str) -> Register:
        return next(register for register in self.registers if register.name == name)
