"""Linear layers on the VPUs of all modules (LAD, section IV-A)."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.float_add import FloatAdd, FloatAddParameters
from hw.arith.float_convert import FloatConvert, FloatConvertParameters
from hw.arith.float_format import FP16, FP32
from hw.component import Component
from hw.lad.caches.row_memory import row_memory
from hw.lad.tile_parameters import PIECES, VPUS, LadTileParameters
from hw.lad.vpu import Mode, Vpu
from hw.layout import address, count
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.sequential_reader import SequentialReader, SequentialReaderParameters


class Linear(Component[LadTileParameters]):
    """y[v] = W x[v], for up to six vectors x at once.

    ::

        q ─→ pieces of the vectors ──→ VPU v: x[v] piece . W piece ─→ FP32 ─→ + ─→ y
        rows of W ┄┄→ reorder buffer ──↑

    A row of W and a vector have `pieces` times d elements; their pieces are rows of memory and of
    ``q``, one row of W after another. Each piece of W goes to all VPUs, with the same
    piece of each one's vector, and the dot products in FP16 are added in FP32, in order.

    Throughput: a piece per cycle, as the memory has them. Vectors are accepted one piece per cycle
    before.
    """

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(
                linear_layout(p), "``row``: of the region of weights; ``rows`` of W, 1 or more."
            ),
            "q": stream_in(p.row_layout, "Pieces of the first vector, then of the next one."),
            "request": stream_out(p.block_memory.read_layout),
            "response": stream_in(p.block_memory.response_layout),
            "active": wire_out(1, "The VPUs are used here."),
            "vpu": wire_out(LinearPort(p)).array(VPUS),
            "y": stream_out(
                p.y_layout, "One for each row of W: FP32, 0 for vectors that are not there."
            ),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        command = Signal(linear_layout(p), reset_less=True)
        vector = Signal(range(VPUS))
        piece = Signal(range(PIECES))
        starts = Signal()
        m.submodules.reader = reader = SequentialReader(
            SequentialReaderParameters(
                address_width=p.address_width,
                data_width=p.row_bits,
                depth=2 * p.depth,
                longest=max(1, p.weights),
            ),
            shape=p.row_layout,
        )
        request, response = self.request, self.response
        m.d.comb += [
            request.valid.eq(reader.request.valid),
            request.payload.tag.eq(reader.request.payload.tag),
            request.payload.address.eq(reader.request.payload.address),
            reader.request.ready.eq(request.ready),
            reader.response.valid.eq(response.valid),
            reader.response.payload.tag.eq(response.payload.tag),
            reader.response.payload.data.eq(response.payload.data),
            response.ready.eq(reader.response.ready),
            reader.command.valid.eq(starts),
            reader.command.payload.address.eq(p.regions["weight"].base + command.row),
            reader.command.payload.words.eq(command.rows * command.pieces),
        ]
        # Pieces of each vector, in a separate memory for each.
        # Vectors are loaded once and used for all rows of W, which then stream past (LAD, section
        # IV-B: VPUs are evenly distributed in linear layers).
        reads = []
        for number in range(VPUS):
            pieces = row_memory(p.row_bits, PIECES)
            m.submodules[f"vector_{number}"] = pieces
            write = pieces.write_port()
            reads.append(pieces.read_port())
            m.d.comb += [
                write.addr.eq(piece),
                write.data.eq(self.q.payload),
                write.en.eq(self.q.valid & self.q.ready & (vector == number)),
            ]
        finished = Signal()
        self._states(m, command, vector, piece, reader.command.ready, starts, finished)
        self._multiply(m, command, reader, reads)
        self._sum(m, command, finished)
        return m

    def _states(self, m: Module, command, vector, piece, ready, starts, finished) -> None:
        """The vectors' pieces are stored, then rows of W are read until all have been output."""
        with m.FSM() as fsm:
            m.d.comb += self.active.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                # A layer begins with its first vector's first piece.
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += [vector.eq(0), piece.eq(0)]
                with m.If(self.command.valid):
                    m.d.sync += command.eq(self.command.payload)
                    m.next = "VECTORS"
            with m.State("VECTORS"):
                # All pieces of a vector, then the next vector.
                m.d.comb += self.q.ready.eq(1)
                with m.If(self.q.valid):
                    m.d.sync += piece.eq(piece + 1)
                    with m.If(piece == command.pieces - 1):
                        m.d.sync += [piece.eq(0), vector.eq(vector + 1)]
                        with m.If(vector == command.vectors - 1):
                            m.next = "START"
            with m.State("START"):
                # Rows of W follow one another, so one command reads them all.
                m.d.comb += starts.eq(1)
                with m.If(ready):
                    m.next = "ROWS"
            with m.State("ROWS"):
                # Products and sums go on by themselves as pieces of W come.
                with m.If(finished):
                    m.next = "IDLE"

    def _multiply(self, m: Module, command, reader, reads) -> None:
        """Each piece of W to all VPUs; it waits a cycle for the pieces it is multiplied with."""
        p = self.parameters
        following = Signal(range(PIECES))  # piece of the next word of W
        word = Signal(p.row_layout, reset_less=True)
        valid = Signal()
        ready = Signal()
        fire = Signal()
        m.d.comb += [
            # All VPUs accept in the same cycles.
            # The VPUs have the same history, so one ready speaks for all of them.
            ready.eq(~valid | self.vpu[0].ready),
            reader.o.ready.eq(ready),
            fire.eq(reader.o.valid & ready),
        ]
        with m.If(ready):
            m.d.sync += valid.eq(reader.o.valid)
        with m.If(self.command.ready):  # no layer is under way
            m.d.sync += following.eq(0)
        with m.If(fire):
            m.d.sync += [
                word.eq(reader.o.payload.data),
                following.eq(Mux(following == command.pieces - 1, 0, following + 1)),
            ]
        # All VPUs have the same word of W, each one its own vector's piece.
        for port, read in zip(self.vpu, reads, strict=True):
            m.d.comb += [
                port.active.eq(self.active),
                read.addr.eq(following),
                read.en.eq(fire),
                port.valid.eq(valid),
                port.vector.eq(read.data),
                port.row.eq(word),
            ]

    def _sum(self, m: Module, command, finished: Signal) -> None:
        """Dot products of the pieces in FP32; the VPUs return theirs in the same cycle."""
        done = Signal(range(PIECES))  # pieces of the row that are summed
        rows = Signal.like(command.rows)
        first = Signal()
        last = Signal()
        fire = Signal()
        y = self.y
        arrives = self.vpu[0].dot_valid & self.active
        m.d.comb += [
            first.eq(done == 0),
            last.eq(done == command.pieces - 1),
            fire.eq(arrives & (~last | ~y.valid | y.ready)),
            finished.eq(y.valid & y.ready & y.payload.last),
        ]
        with m.If(y.ready):
            m.d.sync += y.valid.eq(0)
        # The last piece's sums are a row of the output, and wait for its register to be free.
        with m.If(fire):
            m.d.sync += done.eq(Mux(last, 0, done + 1))
            with m.If(last):
                m.d.sync += [
                    y.valid.eq(1),
                    y.payload.last.eq(rows == command.rows - 1),
                    rows.eq(rows + 1),
                ]
        with m.If(self.command.ready):
            m.d.sync += [done.eq(0), rows.eq(0)]
        for number, port in enumerate(self.vpu):
            total = Signal(FP32, name=f"total_{number}", reset_less=True)
            sums = Signal(FP32, name=f"sum_{number}")
            m.submodules[f"convert_{number}"] = convert = FloatConvert(
                FloatConvertParameters(source="fp16", format="fp32")
            )
            # As in AC, no sum of FP16 numbers is subnormal.
            m.submodules[f"add_{number}"] = add = FloatAdd(
                FloatAddParameters(format="fp32", flush_subnormals=True)
            )
            m.d.comb += [
                port.dot_ready.eq(fire),
                convert.a.eq(port.dot),
                # FP16 dot products of d elements, FP32 sums of pieces: a row of 16 d elements loses
                # no more than one of d.
                add.a.eq(total),
                add.b.eq(convert.o),
                sums.eq(Mux(first, convert.o, add.o)),
            ]
            with m.If(fire):
                m.d.sync += total.eq(sums)
                with m.If(last):
                    m.d.sync += y.payload.y[number].eq(Mux(command.vectors > number, sums, 0))


class LinearPort(wiring.Signature):
    """A module's VPU, lent: a dot product of ``vector`` and ``row``."""

    def __init__(self, parameters: LadTileParameters):
        p = parameters
        super().__init__(
            {
                "active": Out(1),
                "valid": Out(1),
                "ready": In(1),
                "vector": Out(p.row_layout),
                "row": Out(p.row_layout),
                "dot_valid": In(1),
                "dot_ready": Out(1),
                "dot": In(FP16),
            }
        )


def linear_ports(p: LadTileParameters, words: str, *dimensions: int) -> Ports:
    """The port ``linear`` of a block that lends its VPUs, if there is a linear mode."""
    if not p.weights:
        return {}
    port = wire_in(LinearPort(p), f"Only with `weights`: {words}")
    return {"linear": port.array(*dimensions) if dimensions else port}


def lend(m: Module, vpu: Vpu, port) -> None:
    """While `port` is active, it has the VPU instead of the module that holds it."""
    operation = vpu.i.payload
    with m.If(port.active):
        m.d.comb += [
            vpu.i.valid.eq(port.valid),
            operation.mode.eq(Mode.DP),
            operation.load.eq(1),
            operation.vec1.eq(port.vector),
            operation.vec2.eq(port.row),
            vpu.o_scal.ready.eq(port.dot_ready),
        ]
    m.d.comb += [
        port.ready.eq(vpu.i.ready),
        port.dot_valid.eq(vpu.o_scal.valid),
        port.dot.eq(vpu.o_scal.payload),
    ]


def linear_layout(p: LadTileParameters) -> data.StructLayout:
    """``vectors``, 1 to 6, of ``pieces`` rows each; ``rows`` of W from ``row`` of the weights."""
    return data.StructLayout(
        {
            "vectors": count(range(VPUS + 1)),
            "pieces": count(range(PIECES + 1)),
            "row": address(range(max(2, p.weights))),
            "rows": count(range(p.weights + 1)),
        }
    )
