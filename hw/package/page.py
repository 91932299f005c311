"""The page of a package: its files, how to use it, and its registers."""

from hw.bus.device_map import DeviceStream
from hw.package.description import Beat, Description


def page(description: Description) -> str:
    """The text of ``README.md``."""
    module, name = description.module, description.name
    bus = description.design.bus
    streams = "\n".join(_row(*_channel(beat)) for beat in description.beats)
    registers = "\n".join(
        _row(
            f"0x{register.offset:03x}",
            f"`{register.name}`",
            register.bits,
            ", ".join(dict.fromkeys(field.access for field in register.fields)),
            register.words,
        )
        for register in description.registers.registers
    )
    masters = ", ".join(f"`{prefix}_*`" for prefix in description.masters)
    return f"""\
# {module}

{description.summary}.

An AXI4-Lite slave `s_axi_*` for its registers, AXI4 masters {masters} of {bus.data} data bits and
{bus.address} address bits for its streams and memories, a level `interrupt`, clock `aclk` and
synchronous reset `aresetn`, active low.

| file | for |
| --- | --- |
| `{module}.v` | simulators and synthesis, Verilog-2001 |
| `{module}.json` | any program: parameters, registers, beats |
| `{module}.h` | C99: registers, and functions that pack and unpack beats |
| `{module}.py` | Python: the same, and a driver for any transport |
| `{module}.rdl` | SystemRDL: PeakRDL |
| `{module}.xml` | IP-XACT 1685-2014 |
| `{module}.core` | FuseSoC |
| `{module}_litex.py` | LiteX: `{_class(name)}(platform).add_to(soc)` |

## A run

1. Write each stream's `base` and `beats`, each memory's `base`. Beats and rows lie one behind the
   other, each in the bytes below, bit 0 in the lowest bit of the first byte. Bases are multiples of
   these bytes.
2. Write caches back, as the device reads memory itself.
3. Write 1 to `interrupt_enable` and `interrupt_mask`, and 1 to `control`.
4. At the interrupt, or when `control` has bit 1 (done): read `error`, write 1 to
   `interrupt_status`, invalidate caches, read the buffers.

In C:

```c
#include "{module}.h"

volatile uint32_t *device = (volatile uint32_t *)BASE;
if (!{name}_present(device))
    return 1;
{_writes(description)}
{name}_start(device);
while (!{name}_done(device))
    ;
return (int){name}_error(device);
```

## Streams and memories

| channel | kind | bits | bytes in memory | meaning |
| --- | --- | ---: | ---: | --- |
{streams}

## Registers

| offset | register | bits | access | meaning |
| --- | --- | ---: | --- | --- |
{registers}
"""


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _channel(beat: Beat) -> tuple:
    """Cells of a stream's or memory's line."""
    channel = beat.channel
    if isinstance(channel, DeviceStream):
        kind, words = "stream", channel.words
    else:
        kind, words = "memory", f"{1 << channel.address_bits} rows at most."
    return f"`{channel.channel}`", kind, beat.width, channel.bytes, words


def _class(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _writes(description: Description) -> str:
    upper, lines = description.name.upper(), []
    for beat in description.beats:
        channel = beat.channel.channel
        lines.append(
            f"{description.name}_write64(device, {upper}_{channel.upper()}_BASE, {channel});"
        )
        if isinstance(beat.channel, DeviceStream):
            register = f"{upper}_{channel.upper()}_BEATS"
            lines.append(f"{description.name}_write(device, {register}, {channel}_beats);")
    return "\n".join(lines)
