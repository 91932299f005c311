"""The Python driver of a device: tables of its registers and beats, and what all drivers do."""

from pathlib import Path

from hw.bus.errors import ERROR_WORDS
from hw.emit.header import LICENCE
from hw.package.description import Description

RUNTIME = Path(__file__).with_name("runtime.py")
COPIED = "# Copied into packages from here on, and the imports.\n"


def python_driver(description: Description) -> str:
    """The text of the driver's file."""
    head, _, copied = RUNTIME.read_text().partition(COPIED)
    assert copied, f"{RUNTIME.name} must have a line {COPIED!r}"
    imports = [line for line in head.splitlines() if line.startswith(("import ", "from "))]
    lines = [
        f"# SPDX-License-Identifier: {LICENCE}",
        f'"""{description.summary}.',
        "",
        f"The driver of the module {description.module}, for any transport::",
        "",
        "    device = Device(PhysicalMemory((BASE, SIZE)), BASE)",
        f"    device.start({_example(description)})",
        "    cycles = device.wait()",
        '"""',
        "",
        *imports,
        "",
        f'MODULE = "{description.module}"',
        f"BUILD = 0x{description.design.device.build:016x}",
        *_tables(description),
        copied.rstrip(),
        "",
    ]
    return "\n".join(lines)


def _example(description: Description) -> str:
    return ", ".join(
        f"{beat.channel.channel}=ADDRESS"
        if f"{beat.channel.channel}_beats" not in {r.name for r in description.registers.registers}
        else f"{beat.channel.channel}=(ADDRESS, BEATS)"
        for beat in description.beats[:1]
    )


def _tables(description: Description) -> list[str]:
    lines = ["REGISTERS = {"]
    registers = description.registers.registers
    lines += [f'    "{r.name}": (0x{r.offset:03x}, {r.bits}),' for r in registers]
    lines += ["}", '"""Offset and bits of each register."""', "", "FIELDS = {"]
    for register in registers:
        named = [field for field in register.fields if field.name]
        if named:
            lines.append(f'    "{register.name}": {{')
            lines += [f'        "{f.name}": ({f.low}, {f.width}),' for f in named]
            lines.append("    },")
    lines += ["}", '"""Lowest bit and width of each named field of a register."""', ""]
    lines.append("ERRORS = {")
    lines += [f"    {code.value}: {_text(words)}," for code, words in ERROR_WORDS.items()]
    lines += ["}", "", "CHANNELS = {"]
    for beat in description.beats:
        lines += [f'    "{beat.channel.channel}": (', f"        {beat.channel.bytes},", "        {"]
        for member in beat.members:
            field = member.field
            arrays = [(array.count, array.stride) for array in field.arrays]
            entry = (field.offset, field.width, field.signed, arrays)
            lines.append(f'            "{member.name}": {entry!r},')
        lines += ["        },", "    ),"]
    words = (
        '"""Bytes of a beat or row of each channel, and offset, width, sign and arrays (elements,'
    )
    return [*lines, "}", words, 'bits from each to the next) of its fields."""']


def _text(words: str) -> str:
    return '"' + words.rstrip(".").replace('"', '\\"') + '"'
