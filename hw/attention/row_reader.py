"""Runs of rows for several query heads: read from memory once, output once for each head."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, wiring

from hw.component import Component
from hw.layout import count
from hw.ports import Ports, stream_in, stream_out
from hw.stream.queue import Queue, QueueParameters
from hw.stream.reorder_buffer import ReorderBuffer
from hw.stream.sequential_reader import SequentialReaderParameters

RUNS = 16
"""Number of runs whose rows are on their way or in the buffer, at most."""


class RowReader(Component[SequentialReaderParameters]):
    """Read runs of consecutive rows; output each run as many times as heads use it.

    ::

        command ─→ address, rows left ─→ request ┄┄ memory ┄┄→ response ─→ buffer ─→ o
                       └────────────────── times ───────────────────────────↑

    The buffer has `depth` rows, and the rows of the next runs are requested as soon as it has room.
    A run that fits is kept there until its last time; a longer one is read anew for each time.

    Latency and handshake: as :class:`hw.stream.sequential_reader.SequentialReader`. Throughput: a
    row a cycle, also from the last row of a run to the first of the next, or of the same again, if
    the memory answers within `depth` - 2 cycles; with runs of few rows, within RUNS runs' rows.

    Parameters
    ----------
    parameters : :class:`SequentialReaderParameters`
        Runs have 1 to `longest` rows.
    row : shape-like
        Shape of a row.
    times : int
        Number of times that a run is output, at most.
    """

    def __init__(self, parameters: SequentialReaderParameters, row, times: int):
        self._row, self._times = row, times
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(run_layout(p, self._times), "Runs."),
            **p.memory(self._row).ports(reads_only=True),
            "o": stream_out(p.output_layout(self._row), "Rows; `last` of a run each time."),
        }

    def elaborate(self, platform):
        m = Module()
        p, command = self.parameters, self.command
        m.submodules.reorder = reorder = ReorderBuffer(
            p.depth, p.address_width, self._row, repeat=True
        )
        size = QueueParameters(depth=min(RUNS, p.depth))
        layout = data.StructLayout({"times": count(range(self._times + 1))})
        m.submodules.runs = runs = Queue(size, shape=layout)
        wiring.connect(m, reorder.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), reorder.response)
        wiring.connect(m, reorder.o, wiring.flipped(self.o))

        # Requests: once through a run that fits in the buffer, else once for each time.
        run = Signal(run_layout(p, self._times), reset_less=True)
        left = Signal(range(p.longest + 1))  # rows still to request
        address = Signal(p.address_width, reset_less=True)
        again = Signal(range(self._times + 1))  # times that the run is still to be requested
        long = Signal()
        first = Signal()
        issue = Signal()
        final = Signal()
        m.d.comb += [
            long.eq(run.words > p.depth),
            first.eq(left == run.words),
            reorder.i.valid.eq(left.any() & (runs.i.ready | ~first)),
            reorder.i.payload.address.eq(address),
            reorder.i.payload.last.eq(left == 1),
            issue.eq(reorder.i.valid & reorder.i.ready),
            # The output needs the number of times before the first row comes.
            runs.i.valid.eq(issue & first),
            runs.i.payload.times.eq(Mux(long, 1, run.times)),
            final.eq((left == 1) & (~long | (again == 1))),
            command.ready.eq(~left.any() | (final & issue)),
        ]
        with m.If(issue):
            m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
            with m.If(left == 1):
                m.d.sync += again.eq(again - 1)
                with m.If(~final):
                    m.d.sync += [address.eq(run.address), left.eq(run.words)]
        with m.If(command.valid & command.ready):
            m.d.sync += [
                Value.cast(run).eq(Value.cast(command.payload)),
                address.eq(command.payload.address),
                left.eq(command.payload.words),
                again.eq(command.payload.times),
            ]

        # The output: a run's rows stay in their slots until its last time.
        number = Signal(range(1, self._times + 1), init=1)  # of the time
        last_time = Signal()
        m.d.comb += [
            last_time.eq(number == runs.o.payload.times),
            reorder.again.eq(~last_time),
            runs.o.ready.eq(reorder.run_end & last_time),
        ]
        with m.If(reorder.run_end):
            m.d.sync += number.eq(Mux(last_time, 1, number + 1))
        return m


def run_layout(p: SequentialReaderParameters, times: int) -> data.StructLayout:
    """``address`` of the first row, number of rows (``words``), and ``times`` it is output."""
    fields = {name: field.shape for name, field in p.command_layout}
    return data.StructLayout(fields | {"times": count(range(times + 1))})
