"""The registers of a device in SystemRDL 2.0, for PeakRDL and its like.

A register of 64 bits is two of 32, ``NAME_low`` and ``NAME_high``: a master of 32 bits writes them
one after the other. That a read of the low word of a counter keeps the high word is in their
description only.
"""

from hw.bus.register_map import CLEAR, CONSTANT, PULSE, READ_ONLY, READ_WRITE, RegisterField, Word
from hw.emit.header import LICENCE
from hw.package.description import Description

PROPERTIES = {
    READ_WRITE: "sw = rw; hw = r;",
    READ_ONLY: "sw = r; hw = w;",
    CLEAR: "sw = rw; onwrite = woclr; hw = r; hwset;",
    PULSE: "sw = w; singlepulse; hw = r;",
    CONSTANT: "sw = r; hw = na;",
}
"""A field's properties in SystemRDL by its access."""


def system_rdl(description: Description) -> str:
    """The text of the ``.rdl`` file."""
    lines = [
        f"// SPDX-License-Identifier: {LICENCE}",
        f"// {description.summary}.",
        "",
    ]
    codes = [
        field
        for register in description.registers.registers
        for field in register.fields
        if field.codes
    ]
    for field in codes:
        assert field.codes is not None
        lines.append(f"enum {description.name}_{field.name} {{")
        lines += [f"    {code.name} = {field.width}'d{code.value};" for code in field.codes]
        lines += ["};", ""]
    lines += [
        f"addrmap {description.module} {{",
        f'    name = "{description.module}";',
        f"    desc = {_quoted(description.summary + '.')};",
        "    default regwidth = 32;",
        "    default accesswidth = 32;",
        "    littleendian;",
        "    lsb0;",
    ]
    for word in description.registers.words:
        lines += _register(description, word)
    return "\n".join([*lines, "};", ""])


def _register(description: Description, word: Word) -> list[str]:
    lines = ["    reg {", f"        desc = {_quoted(word.register.words)};"]
    for field in word.fields:
        place = f"[{field.low + field.width - 1}:{field.low}]"
        reset = f"{field.width}'h{field.reset:x}"
        lines += [
            "        field {",
            f"            desc = {_quoted(field.words)};",
            f"            {PROPERTIES[field.access]}",
            *_codes(description, field),
            f"        }} {field.name or 'value'}{place} = {reset};",
        ]
    return [*lines, f"    }} {word.name} @ 0x{word.offset:x};"]


def _codes(description: Description, field: RegisterField) -> list[str]:
    return [f"            encode = {description.name}_{field.name};"] if field.codes else []


def _quoted(words: str) -> str:
    text = words.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
