"""The C header of a device: registers, beats as structures, and functions for both.

C99 without warnings, for a processor with the least significant byte first.
"""

from hw.bus.device_map import DESCRIPTOR_INTERRUPT, DeviceMemory, descriptor, descriptor_bytes
from hw.bus.errors import ERROR_WORDS, ErrorCode
from hw.bus.register_map import ACCESSES, CONSTANT
from hw.emit.header import LICENCE
from hw.layout import format_words
from hw.package.description import Beat, Description, Member
from hw.package.words import wrapped

BITS = """\
#ifndef SENBAZURU_BITS
#define SENBAZURU_BITS

/* Puts the low `width` bits (64 at most) of a value at bit `offset` of an array of words. */
static inline void senbazuru_put(uint32_t *words, unsigned offset, unsigned width, uint64_t value)
{
    while (width > 0) {
        unsigned low = offset % 32, part = 32 - low < width ? 32 - low : width;
        uint32_t mask = 0xffffffffu >> (32 - part) << low;
        uint32_t *word = words + offset / 32;
        *word = (*word & ~mask) | ((uint32_t)(value << low) & mask);
        value = part < 64 ? value >> part : 0;
        offset += part;
        width -= part;
    }
}

/* The `width` bits (64 at most) at bit `offset` of an array of words, unsigned. */
static inline uint64_t senbazuru_get(const uint32_t *words, unsigned offset, unsigned width)
{
    uint64_t value = 0;
    unsigned done = 0;
    while (done < width) {
        unsigned low = (offset + done) % 32;
        unsigned part = 32 - low < width - done ? 32 - low : width - done;
        uint32_t bits = words[(offset + done) / 32] >> low & 0xffffffffu >> (32 - part);
        value |= (uint64_t)bits << done;
        done += part;
    }
    return value;
}

/* The same as a two's complement number. */
static inline int64_t senbazuru_get_signed(const uint32_t *words, unsigned offset, unsigned width)
{
    uint64_t value = senbazuru_get(words, offset, width), sign = (uint64_t)1 << (width - 1);
    return (int64_t)((value ^ sign) - sign);
}

#endif
"""
FUNCTIONS = """\
/* `device` is the address of the registers. */
static inline void NAME_write(volatile uint32_t *device, unsigned offset, uint32_t value)
{
    device[offset / 4] = value;
}

static inline uint32_t NAME_read(volatile uint32_t *device, unsigned offset)
{
    return device[offset / 4];
}

/* A register of 64 bits, which is two words. */
static inline void NAME_write64(volatile uint32_t *device, unsigned offset, uint64_t value)
{
    device[offset / 4] = (uint32_t)value;
    device[offset / 4 + 1] = (uint32_t)(value >> 32);
}

/* The low word first: it keeps the high word of a counter for the read behind it. */
static inline uint64_t NAME_read64(volatile uint32_t *device, unsigned offset)
{
    uint64_t low = device[offset / 4];
    return (uint64_t)device[offset / 4 + 1] << 32 | low;
}

/* Whether the device is there and is the one that this header was made for. */
static inline int NAME_present(volatile uint32_t *device)
{
    return NAME_read(device, UPPER_IDENTIFICATION) == UPPER_IDENTIFICATION_VALUE
        && NAME_read64(device, UPPER_BUILD) == UPPER_BUILD_VALUE;
}

static inline void NAME_start(volatile uint32_t *device)
{
    NAME_write(device, UPPER_CONTROL, UPPER_CONTROL_START);
}

static inline int NAME_done(volatile uint32_t *device)
{
    return (NAME_read(device, UPPER_CONTROL) & UPPER_CONTROL_DONE) != 0;
}

/* Why the last run ended early: one of UPPER_ERROR_CODE_*, 0 for a run without error. */
static inline unsigned NAME_error(volatile uint32_t *device)
{
    return NAME_read(device, UPPER_ERROR) & UPPER_ERROR_CODE;
}
"""


def c_header(description: Description) -> str:
    """The header's text."""
    upper = description.name.upper()
    guard = f"{description.module.upper()}_H"
    lines = [
        f"/* SPDX-License-Identifier: {LICENCE} */",
        *_comment(f"{description.summary}. Of the module {description.module}."),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "#include <string.h>",
        "",
        BITS,
        *_registers(description, upper),
        *_descriptor(description, upper),
        FUNCTIONS.replace("NAME", description.name).replace("UPPER", upper),
    ]
    for beat in description.beats:
        lines += _beat(description.name, beat)
    return "\n".join([*lines, f"#endif /* {guard} */", ""])


def _comment(words: str) -> list[str]:
    lines = wrapped(words.replace("*/", "* /"), 94)
    lines = [f"/* {lines[0]}", *(f"   {line}" for line in lines[1:])]
    return [*lines[:-1], f"{lines[-1]} */"]


def _registers(description: Description, upper: str) -> list[str]:
    lines = ["/* Registers: bytes from the first one, and masks of their fields. */", ""]
    for register in description.registers.registers:
        name = f"{upper}_{register.name.upper()}"
        suffix = "ULL" if register.bits == 64 else "u"
        lines += [*_comment(register.words), f"#define {name} 0x{register.offset:03x}u"]
        for field in register.fields:
            if field.name:
                part = f"{name}_{field.name.upper()}"
                lines += _comment(f"{field.words} {ACCESSES[field.access]}")
                lines.append(f"#define {part} 0x{field.mask:x}{suffix}")
                if field.width > 1:
                    lines.append(f"#define {part}_SHIFT {field.low}")
            for code in field.codes or ():
                lines += _comment(ERROR_WORDS[ErrorCode(code)])
                lines.append(f"#define {name}_CODE_{code.name} {code.value}u")
        if register.reset and all(field.access == CONSTANT for field in register.fields):
            lines.append(f"#define {name}_VALUE 0x{register.reset:x}{suffix}")
        lines.append("")
    return lines


def _descriptor(description: Description, upper: str) -> list[str]:
    """A descriptor as a structure, whose places a compiler checks."""
    device = description.design.device
    name = f"{description.name}_descriptor"
    lines = ["/* A descriptor of a run in memory, at a multiple of 16. */", f"struct {name} {{"]
    place = 0
    for entry in descriptor(device):
        if gap := entry.offset - place:
            lines.append(f"    uint32_t unused_{place}[{gap // 4}];")
        lines.append(f"    uint{8 * entry.size}_t {entry.name}; /* {entry.words} */")
        place = entry.offset + entry.size
    size = descriptor_bytes(device)
    if size > place:
        lines.append(f"    uint32_t unused_{place}[{(size - place) // 4}];")
    return [
        *lines,
        "};",
        f"#define {upper}_DESCRIPTOR_INTERRUPT {DESCRIPTOR_INTERRUPT}u",
        f"typedef char {name}_has_{size}_bytes[",
        f"    sizeof(struct {name}) == {size} ? 1 : -1];",
        "",
    ]


def _beat(prefix: str, beat: Beat) -> list[str]:
    """A structure, and functions between it and words in memory."""
    name = f"{prefix}_{beat.channel.channel}"
    upper = name.upper()
    lines = [
        *_comment(_words_of(beat)),
        f"#define {upper}_BYTES {beat.channel.bytes}u",
        f"#define {upper}_WORDS {beat.words}u",
        f"struct {name} {{",
        *(f"    {_declaration(member)}" for member in beat.members),
        "};",
        "",
        f"static inline void {name}_pack(",
        f"    uint32_t *beat, const struct {name} *from)",
        "{",
        f"    memset(beat, 0, {upper}_BYTES);",
    ]
    for member in beat.members:
        lines += _loops(member, "senbazuru_put(beat, {place}, {width}, (uint64_t)from->{element});")
    lines += [
        "}",
        "",
        f"static inline void {name}_unpack(",
        f"    struct {name} *to, const uint32_t *beat)",
        "{",
    ]
    for member in beat.members:
        get = "senbazuru_get" + "_signed" * _signed(member)
        assignment = f"to->{{element}} = ({_type(member)}){get}(beat, {{place}}, {{width}});"
        lines += _loops(member, assignment)
    return [*lines, "}", ""]


def _words_of(beat: Beat) -> str:
    if isinstance(beat.channel, DeviceMemory):
        return f"A row of {beat.channel.channel}, {beat.width} bits."
    return f"A beat of {beat.channel.channel}, {beat.width} bits. {beat.channel.words}"


def _signed(member: Member) -> bool:
    return member.field.signed and member.field.width <= 64


def _type(member: Member) -> str:
    """The narrowest type that holds a field; words for one of more than 64 bits."""
    width = member.field.width
    size = next((bits for bits in (8, 16, 32, 64) if width <= bits), 32)
    return f"{'' if _signed(member) else 'u'}int{size}_t"


def _declaration(member: Member) -> str:
    counts = [*member.counts]
    if member.field.width > 64:
        counts.append(-(-member.field.width // 32))
    dimensions = "".join(f"[{count}]" for count in counts)
    words = format_words(member.field.as_json())
    about = f" /* {words} */" if words else ""
    return f"{_type(member)} {member.name}{dimensions};{about}"


def _loops(member: Member, statement: str) -> list[str]:
    """A statement for each element of a field, and for each word of a wide one."""
    lines, place, element = [], f"{member.field.offset}", member.name
    indent = "    "
    for index, array in zip("ijklmn", member.field.arrays, strict=False):
        lines.append(f"{indent}for (unsigned {index} = 0; {index} < {array.count}; {index}++)")
        place += f" + {array.stride} * {index}"
        element += f"[{index}]"
        indent += "    "
    width = member.field.width
    if width <= 64:
        return [*lines, indent + statement.format(place=place, width=width, element=element)]
    rest = width % 32 or 32
    count = -(-width // 32)
    lines.append(f"{indent}for (unsigned w = 0; w < {count}; w++)")
    part = f"w < {count - 1} ? 32 : {rest}"
    inner = statement.format(place=f"{place} + 32 * w", width=part, element=f"{element}[w]")
    return [*lines, f"{indent}    {inner}"]
