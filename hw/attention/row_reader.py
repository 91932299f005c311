"""Runs of rows for several query heads: read from memory once, output once for each head."""

from typing import NamedTuple

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

    With `tokens` a run may be of a block of a prompt: its last rows belong to as many new
    tokens. Each of its times is then once for each of them, with the rows up to the token's: of n
    rows for three tokens, n - 2, n - 1 and n rows.

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
    tokens : int
        Number of tokens of a block, at most.
    """

    def __init__(self, parameters: SequentialReaderParameters, row, times: int, tokens: int = 1):
        self._row, self._times, self._tokens = row, times, tokens
        super().__init__(parameters)

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "command": stream_in(run_layout(p, self._times, self._tokens), "Runs."),
            **p.memory(self._row).ports(reads_only=True),
            "o": stream_out(p.output_layout(self._row), "Rows; `last` of a run each time."),
        }

    def elaborate(self, platform):
        m = Module()
        p, command = self.parameters, self.command
        m.submodules.reorder = reorder = ReorderBuffer(
            p.depth, p.address_width, self._row, repeat=True, partly=self._tokens > 1
        )
        size = QueueParameters(depth=min(RUNS, p.depth))
        layout = data.StructLayout(times_fields(self._times, self._tokens))
        m.submodules.runs = runs = Queue(size, shape=layout)
        wiring.connect(m, reorder.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), reorder.response)
        wiring.connect(m, reorder.o, wiring.flipped(self.o))

        # Requests: once through a run that fits in the buffer, else once for each time.
        run = Signal(run_layout(p, self._times, self._tokens), reset_less=True)
        left = Signal(range(p.longest + 1))  # rows still to request
        address = Signal(p.address_width, reset_less=True)
        again = Signal(range(self._times + 1))  # times that the run is still to be requested
        long = Signal()
        first = Signal()
        issue = Signal()
        final = Signal()
        m.d.comb += [
            long.eq(run.words > p.depth),
            reorder.i.valid.eq(left.any() & (runs.i.ready | ~first)),
            reorder.i.payload.address.eq(address),
            issue.eq(reorder.i.valid & reorder.i.ready),
            # The output needs the number of times before the first row comes.
            runs.i.valid.eq(issue & first),
            runs.i.payload.times.eq(Mux(long, 1, run.times)),
            command.ready.eq(~left.any() | (final & issue)),
        ]
        if self._tokens > 1:
            time = self._token_times(m, reorder, run, long, left, again)
            m.d.comb += runs.i.payload.tokens.eq(Mux(long, 1, run.tokens))
        else:
            time = RequestedTime(run.words, run.words, command.payload.words, again - 1, again == 1)
            m.d.comb += reorder.i.payload.last.eq(left == 1)
        m.d.comb += [first.eq(left == time.words), final.eq((left == 1) & (~long | time.final))]
        with m.If(issue):
            m.d.sync += [address.eq(address + 1), left.eq(left - 1)]
            with m.If(left == 1):
                m.d.sync += again.eq(time.again)
                with m.If(~final):
                    m.d.sync += [address.eq(run.address), left.eq(time.following)]
        with m.If(command.valid & command.ready):
            m.d.sync += [
                Value.cast(run).eq(Value.cast(command.payload)),
                address.eq(command.payload.address),
                left.eq(time.offered),
                again.eq(command.payload.times),
            ]

        # The output: a run's rows stay in their slots until its last time.
        number = Signal(range(1, self._times + 1), init=1)  # of the time
        last_time = Signal()
        time_ends = reorder.run_end
        m.d.comb += [
            reorder.again.eq(~last_time),
            runs.o.ready.eq(reorder.run_end & last_time),
        ]
        if self._tokens > 1:
            last_token = self._parts(m, reorder, runs.o.payload)
            m.d.comb += last_time.eq((number == runs.o.payload.times) & last_token)
            time_ends = reorder.run_end & last_token
        else:
            m.d.comb += last_time.eq(number == runs.o.payload.times)
        with m.If(time_ends):
            m.d.sync += number.eq(Mux(last_time, 1, number + 1))
        return m

    def _token_times(self, m: Module, reorder, run, long, left, again) -> "RequestedTime":
        """A block's rows: all once, or if the run is `long`, for each time and token its own."""
        p, command = self.parameters, self.command
        words = Signal(range(p.longest + 1))  # of this time
        token = Signal(range(1, self._tokens + 1), init=1)
        last_token = Signal()
        offered = Signal.like(words)  # rows of the first time of the run that is offered
        following = Signal.like(words)  # rows of this run's next time
        new = command.payload
        m.d.comb += [
            last_token.eq(token == run.tokens),
            following.eq(Mux(last_token, run.words - run.tokens + 1, words + 1)),
            offered.eq(Mux(new.words > p.depth, new.words - new.tokens + 1, new.words)),
            # A time may end with the row of any new token, if all are requested at once.
            reorder.i.payload.last.eq(Mux(long, left == 1, left <= run.tokens)),
        ]
        # A long run is a row longer for each token than for the one before.
        with m.If(command.valid & command.ready):
            m.d.sync += [words.eq(offered), token.eq(1)]
        with m.Elif((left == 1) & reorder.i.valid & reorder.i.ready):
            m.d.sync += [words.eq(following), token.eq(Mux(last_token, 1, token + 1))]
        final = (again == 1) & last_token
        return RequestedTime(words, following, offered, again - last_token, final)

    def _parts(self, m: Module, reorder: ReorderBuffer, run) -> Signal:
        """End each time with the row of its token; returns whether that is the run's last."""
        # The rows of new tokens end a block's run, each marked as a possible end: token t's time
        # passes t of them and ends with the next one, so that no token sees a later one.
        token = Signal(range(self._tokens))
        ends = Signal(range(self._tokens))  # rows of new tokens that this time has passed
        last_token = Signal()
        m.d.comb += [last_token.eq(token + 1 == run.tokens), reorder.skip.eq(ends != token)]
        with m.If(reorder.run_end):
            m.d.sync += [ends.eq(0), token.eq(Mux(last_token, 0, token + 1))]
        with m.Elif(reorder.skipped):
            m.d.sync += ends.eq(ends + 1)
        return last_token


class RequestedTime(NamedTuple):
    """What is requested for a run's present time.

    words
        Rows of this time.
    following, offered
        Rows of the run's next time, and of the first one of the run that is offered.
    again
        Times that are left after it.
    final
        It is the run's last time.
    """

    words: Value
    following: Value
    offered: Value
    again: Value
    final: Value


def times_fields(times: int, tokens: int) -> dict:
    """``times`` that a run is output, and if there may be several the block's ``tokens``."""
    fields = {"times": count(range(times + 1))}
    return fields | ({"tokens": count(range(tokens + 1))} if tokens > 1 else {})


def run_layout(p: SequentialReaderParameters, times: int, tokens: int = 1) -> data.StructLayout:
    """``address`` of the first row, number of rows (``words``), ``times`` that it is output.

    With several `tokens`, also the number of a block's ``tokens``, 1 for other runs.
    """
    fields = {name: field.shape for name, field in p.command_layout}
    return data.StructLayout(fields | times_fields(times, tokens))
