# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""A block with its serial link as one Verilog text, for simulation and for an FPGA alike."""

import dataclasses
import functools
import hashlib
import re
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import wiring

from hw.arith.datapath import Datapath
from hw.arith.streamed import Streamed
from hw.boards.block_memory import BoardMemory, memory_of
from hw.boards.board_top import BoardTop, TopParameters
from hw.boards.protocol import VERSION
from hw.boards.sdram_controller_parameters import SdramControllerParameters
from hw.boards.stream_ports import bytes_of
from hw.boards.uart import FEWEST, MOST
from hw.catalogue import Block
from hw.component import ON_FPGA
from hw.emit.export import export, to_rtlil, to_verilog
from hw.parameters import ParameterError, Parameters, require, require_one_of

MOST_ROWS = 1024
"""Rows of a memory on the board, unless told otherwise."""


MEMORIES = ("block", "sdram")
"""What may hold the rows of a block's memories."""
PADS = 2
"""Registers between an SDRAM's controller and the pins, in the pads: one each way."""


@dataclasses.dataclass(frozen=True)
class BoardParameters(Parameters):
    """The link of a board.

    divisor
        Clock cycles a bit of the serial line, at least 4.
    packet
        Bytes of the longest packet, its CRC included.
    stream_bytes
        Bytes that each stream's queue holds; two beats at least are always held.
    memory_rows
        Rows of each memory on the board; 0: requests and responses go over the cable; -1: as many
        as the address reaches, 1024 at most.
    multiplier
        What the FPGA's multipliers are for, products or also shifts: ``dsp`` or ``dsp_shifts``.
    memory
        What holds the rows of memories: ``block`` memory, or an ``sdram``, which has one memory.
    period
        Period of the clock in ps, where it matters: to an SDRAM.
    """

    divisor: int = 25
    packet: int = 1024
    stream_bytes: int = 1024
    memory_rows: int = -1
    multiplier: str = "dsp"
    memory: str = "block"
    period: int = 0

    def __post_init__(self):
        rule = f"divisor must be from {FEWEST} to {MOST}"
        require(FEWEST <= self.divisor <= MOST, rule, self.divisor)
        require(64 <= self.packet <= 8192, "packet must be from 64 to 8192 bytes", self.packet)
        rule = "stream_bytes must be from 16 to 32768"
        require(16 <= self.stream_bytes <= 32768, rule, self.stream_bytes)
        rule = "memory_rows must be from -1 to 1048576"
        require(-1 <= self.memory_rows <= 1 << 20, rule, self.memory_rows)
        require_one_of("multiplier", self.multiplier, [*ON_FPGA])
        require_one_of("memory", self.memory, [*MEMORIES])
        rule = "memory_rows must not be 0 where an SDRAM holds the rows"
        require(self.memory == "block" or self.memory_rows != 0, rule, self.memory_rows)


@dataclasses.dataclass(frozen=True)
class BoardDesign:
    """A block and its link.

    module, verilog
        The top, with the ports clk, rst, rx, tx, running and error, and the text of everything.
    build
        A hash of both, of 64 bits, which the board tells.
    inputs, outputs
        Name to payload shape of the streams that the cable carries; a stream's number in the
        protocol is its place.
    memories
        Those on the board, by the name of their stream of requests.
    sdram
        What holds the rows of the only one of them; None: block memory.
    """

    block: Block
    parameters: Parameters
    board: BoardParameters
    module: str
    verilog: str
    build: int
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    memories: dict[str, BoardMemory]
    sdram: SdramControllerParameters | None = None


@functools.cache
def board_design(
    block: Block, parameters: Parameters, board: BoardParameters | None = None
) -> BoardDesign:
    """Generate a block with its link. The same arguments always give the same text.

    :raises ParameterError: if a beat does not fit a packet, or the block has other inputs than
        streams.
    """
    board = board or BoardParameters()
    component = block.create(parameters)
    exported = export(block, parameters, multiplier=board.multiplier)
    inner = module = exported.name
    text = exported.verilog
    # A datapath has no handshake; in a stream's wrapper it can be stalled by the link as any other.
    if isinstance(component, Datapath):
        component, module = Streamed(component, inner), f"{inner}_streamed"
        text += "\n" + to_verilog(to_rtlil(component, module))
    inputs, outputs = _streams(block, component)
    memories, sdram = _memories(inputs, outputs, board, block.name)
    # A memory on the board answers in cycles what would be thousands of cycles over the cable; its
    # streams then are not the cable's.
    for described in memories.values():
        del outputs[described.request], inputs[described.response]
    widest = max(Shape.cast(shape).width for shape in (*inputs.values(), *outputs.values()))
    widest = max(widest, *(described.row_bits for described in memories.values()), 0)
    need = bytes_of(widest) + 32
    require(board.packet >= need, f"packet must be at least {need} bytes here", board.packet)
    header = re.search(rf"^module \\?{re.escape(module)}\s*\(.*?^\);", text, re.M | re.S)
    assert header is not None
    # A hash of everything that shapes the bitstream: the host compares it, so a stale bitstream is
    # an error and not a wrong result.
    seed = repr((VERSION, dataclasses.astuple(board), text)).encode()
    build = int.from_bytes(hashlib.sha256(seed).digest()[:8], "little")
    top = TopParameters(
        module=module,
        clocks=tuple(clock for clock in ("clk", "rst") if re.search(rf"\b{clock}\b", header[0])),
        inputs=tuple((name, Shape.cast(shape).width) for name, shape in inputs.items()),
        outputs=tuple((name, Shape.cast(shape).width) for name, shape in outputs.items()),
        memories=tuple(memories.values()),
        sdram=sdram,
        build=build,
        **{name: getattr(board, name) for name in ("divisor", "packet", "stream_bytes")},
    )
    name = f"board_{build:016x}"
    verilog = f"{text}\n{to_verilog(to_rtlil(BoardTop(top), name))}"
    streams = inputs, outputs, memories
    return BoardDesign(block, parameters, board, name, verilog, build, *streams, sdram)


def _streams(block: Block, component: wiring.Component) -> tuple[dict, dict]:
    """Payload shapes of the streams into and out of a block, by name."""
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    for path, member, _ in component.signature.flatten(component):
        if path[-1] == "payload":
            streams = inputs if member.flow is wiring.In else outputs
            streams["__".join(map(str, path[:-1]))] = member.shape
        elif path[-1] not in ("valid", "ready") and member.flow is wiring.In:
            raise ParameterError(f"{block.name} has inputs that are not streams")
    return inputs, outputs


def _memories(
    inputs: dict, outputs: dict, board: BoardParameters, block: str
) -> tuple[dict[str, BoardMemory], SdramControllerParameters | None]:
    """The memories on the board, behind each stream of requests with a stream of responses.

    And what an SDRAM is, if it holds them.

    :raises ParameterError: if an SDRAM cannot.
    """
    rows = board.memory_rows
    found: dict[str, BoardMemory] = {}
    for name in outputs if rows else ():
        response = re.sub(r"request(__\d+)?$", r"response\1", name)
        if response != name and response in inputs:
            found[name] = memory_of(name, response, outputs | inputs, 1)
    if board.memory == "block":
        return {name: _with_rows(one, rows, MOST_ROWS) for name, one in found.items()}, None
    if len(found) != 1:
        raise ParameterError(f"an SDRAM holds one memory, and {block} has {len(found) or 'none'}")
    ((name, one),) = found.items()
    of_row = SdramControllerParameters(row=one.row_bits, address=1, period=board.period, pads=PADS)
    one = _with_rows(one, rows, 1 << of_row.reach)
    sizes = {"address": one.port.address_width, "tag": Shape.cast(one.port.tag).width}
    return {name: one}, dataclasses.replace(of_row, **sizes)


def _with_rows(memory: BoardMemory, rows: int, most: int) -> BoardMemory:
    """That number of rows, or for -1 as many as addresses reach, up to `most`."""
    reached = 1 << memory.address_bits
    return dataclasses.replace(memory, rows=min(reached, most if rows < 0 else rows))
