"""Accepts the accelerator's commands and queues one for each of its parts (KLLM, Fig. 5)."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP32
from hw.component import Component
from hw.kllm.core_parameters import IN_FLIGHT, CoreParameters
from hw.kllm.element_function import Function
from hw.layout import FLAG, address, count, index
from hw.stream.queue import Queue, QueueParameters

BANK = index(1)
"""One of the two banks of tables."""


def command_layouts(p: CoreParameters) -> dict:
    """Shapes of the parts' commands for one product, by the part's name.

    ``bank`` is the bank of the product's tables; ``columns`` and ``sets`` are at least 1.
    """
    columns, sets = count(range(p.n + 1)), count(range(p.sets + 1))
    norm = {"normalise": FLAG, "inverse_k": FP32, "eps": FP32, "replace": FLAG, "bank": BANK}
    return {
        "clustering_unit": data.StructLayout({"bank": BANK}),
        "rms_factor": data.StructLayout(norm),
        "codebook_replacement": data.StructLayout({"replace": FLAG, "op": Function, "bank": BANK}),
        "outlier_list": sets,
        "index_buffer": p.index_buffer.replay_layout,
        "product_table": data.StructLayout({"columns": sets, "bank": BANK, "replace": FLAG}),
        "word_fetch": data.StructLayout({"address": address(p.address_width), "sets": sets}),
        "vector_scales": sets,
        "results": data.StructLayout({"columns": columns, "bank": BANK}),
    }


class CommandDispatch(Component):
    """Accept a product's command, queue one for every part, and count the users of each table bank.

    ::

        command ─→ bank, number of sets ─→ queue ─→ clustering_unit
                                        ─→ queue ─→ rms_factor
                                        ─→ …
                                        ─→ queue ─→ results ─→ bank released

    There are two banks of tables. A command with tables of its own waits until they are loaded and
    then uses the other bank than the command before. Loading the next tables of a bank waits until
    the results of all its products have left, which is when their commands leave `results`.

    A command is accepted when each queue has room, so at most `IN_FLIGHT` are in flight. Latency: 1
    cycle from a command to the parts' commands. Handshake: all outputs depend on registers only,
    but ``command.ready`` follows the command's own bits.

    Members
    -------
    command : :py:`In(stream.Signature(parameters.command_layout))`
        Products.
    load_end : :py:`In(1)`
        The last table row of a set is accepted in this cycle.
    load_bank : :py:`Out(1)`
        Bank to which tables are loaded now.
    load_room : :py:`Out(1)`
        Whether that bank is free, so that tables may be loaded.
    clustering_unit, rms_factor, codebook_replacement, outlier_list, index_buffer, product_table,
    word_fetch, vector_scales, results : :py:`Out(stream)`
        Commands, shaped as :func:`command_layouts` says.
    """

    def __init__(self, parameters: CoreParameters):
        self._parameters = parameters
        layouts = command_layouts(parameters)
        super().__init__(
            {
                "command": In(stream.Signature(parameters.command_layout)),
                "load_end": In(1),
                "load_bank": Out(1),
                "load_room": Out(1),
                **{name: Out(stream.Signature(shape)) for name, shape in layouts.items()},
            }
        )

    @property
    def parameters(self) -> CoreParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p, command, results = self._parameters, self.command.payload, self.results
        latest_bank = Signal()  # of the latest command
        loaded = Signal()  # tables are complete, no command has used them yet
        needs_tables = Signal()
        bank = Signal()  # of this command
        columns = Signal(range(p.n + 1))
        sets = Signal(range(p.sets + 1))
        accept = Signal()
        # A function rebuilds the product table, so it takes a bank of its own as well.
        m.d.comb += [
            needs_tables.eq(command.tables | command.replace),
            bank.eq(Mux(needs_tables, self.load_bank, latest_bank)),
            columns.eq(Mux(command.columns == 0, 1, command.columns)),
            sets.eq((columns + (p.lanes - 1)) >> (p.lanes.bit_length() - 1)),
            accept.eq(self.command.valid & self.command.ready),
        ]
        norm = {name: command[name] for name in ("normalise", "inverse_k", "eps", "replace")}
        room = self._queues(
            m,
            accept,
            {
                "clustering_unit": {"bank": bank},
                "rms_factor": norm | {"bank": bank},
                "codebook_replacement": {
                    "replace": command.replace,
                    "op": command.op,
                    "bank": bank,
                },
                "outlier_list": sets,
                "index_buffer": {
                    "columns": sets,
                    "tag": Cat(bank, command.integer, command.normalise),
                },
                "product_table": {"columns": sets, "bank": bank, "replace": command.replace},
                "word_fetch": {"address": command.address, "sets": sets},
                "vector_scales": sets,
                "results": {"columns": columns, "bank": bank},
            },
        )
        m.d.comb += self.command.ready.eq(room & (loaded | ~needs_tables))
        with m.If(self.load_end):
            m.d.sync += loaded.eq(1)
        with m.If(accept):
            m.d.sync += latest_bank.eq(bank)
            with m.If(needs_tables):
                m.d.sync += [loaded.eq(0), self.load_bank.eq(~self.load_bank)]

        # Products in flight that use each bank: counted up on accept, down with the last result.
        users = [Signal(range(IN_FLIGHT + 1), name=f"users_{n}") for n in (0, 1)]
        m.d.comb += self.load_room.eq(~Mux(self.load_bank, *reversed(users)).any() & ~loaded)
        finished = Signal()
        m.d.comb += finished.eq(results.valid & results.ready)
        for n in (0, 1):
            acquire = Signal(name=f"acquire_{n}")
            release = Signal(name=f"release_{n}")
            m.d.comb += [
                acquire.eq(accept & (bank == n)),
                release.eq(finished & (results.payload.bank == n)),
            ]
            with m.If(acquire & ~release):
                m.d.sync += users[n].eq(users[n] + 1)
            with m.Elif(release & ~acquire):
                m.d.sync += users[n].eq(users[n] - 1)
        return m

    def _queues(self, m: Module, accept: Signal, commands: dict) -> Value:
        """Put the commands into their queues; returns whether all queues have room."""
        rooms = []
        for name, fields in commands.items():
            o = getattr(self, name)
            shape = Signal(o.payload.shape()).shape()
            size = QueueParameters(len(Value.cast(o.payload)), IN_FLIGHT)
            m.submodules[f"{name}_commands"] = queue = Queue(size, shape=shape)
            values = fields.items() if isinstance(fields, dict) else ()
            m.d.comb += [
                queue.i.valid.eq(accept),
                o.valid.eq(queue.o.valid),
                queue.o.ready.eq(o.ready),
                Value.cast(o.payload).eq(Value.cast(queue.o.payload)),
                *(queue.i.payload[field].eq(value) for field, value in values),
            ]
            if not values:
                m.d.comb += queue.i.payload.eq(fields)
            rooms.append(queue.i.ready)
        return Cat(rooms).all()
