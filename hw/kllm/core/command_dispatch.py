"""Accepts the accelerator's commands and queues one for each of its parts (KLLM, Fig. 5)."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.arith.float_format import FP32
from hw.component import Component
from hw.kllm.core.core_parameters import IN_FLIGHT, CoreParameters
from hw.kllm.element_function import Function
from hw.kllm.outlier_split import at_most
from hw.layout import FLAG, address, count, index
from hw.ports import Ports, stream_in, stream_out, wire_in, wire_out
from hw.stream.queue import Queue, QueueParameters

BANK = index(1)
"""One of the two banks of tables."""


def command_layouts(p: CoreParameters) -> dict:
    """Shapes of the parts' commands by the part's name, for each vector (`PER_VECTOR`) or product.

    ``bank`` is the bank of the product's tables; ``end``: the vector is its batch's last;
    ``columns``, ``sets``, ``vectors``, ``words`` and ``groups`` are at least 1.
    """
    columns, sets, vectors = (count(range(n + 1)) for n in (p.n, p.sets, p.vectors))
    words, groups = (count(range(n + 1)) for n in (p.beats, p.groups))
    where = address(p.address_width)
    norm = {"normalise": FLAG, "inverse_k": FP32, "eps": FP32, "replace": FLAG, "bank": BANK}
    shapes = {
        "outlier_split": {"outliers": p.outlier_split.count_layout},
        "clustering_unit": {"bank": BANK},
        "rms_factor": norm | {"end": FLAG},
        "codebook_replacement": {"replace": FLAG, "op": Function, "bank": BANK},
        "score_use": {"weighted": FLAG},
        "index_end": {"end": FLAG, "store": FLAG},
        "list_end": {"end": FLAG},
        "product_table": {"columns": sets, "groups": groups, "bank": BANK, "replace": FLAG},
        "outlier_list": {"columns": sets},
        "index_buffer": {"columns": sets, "tag": p.index_buffer.replay_layout["tag"].shape},
        "word_fetch": {"address": where, "words": words, "sets": sets, "vectors": vectors},
        "scale_replay": {"sets": sets, "vectors": vectors, "add": FLAG},
        "results": {
            **{"columns": columns, "vectors": vectors, "bank": BANK},
            **{"partial": FLAG, "softmax": FLAG},
        },
    }
    return {name: data.StructLayout(shape) for name, shape in shapes.items()}


PER_VECTOR = (
    "outlier_split",
    "clustering_unit",
    "rms_factor",
    "codebook_replacement",
    "score_use",
    "index_end",
    "list_end",
    "product_table",
)
"""Parts with a command for each vector of a batch; the others have one for each product."""


class CommandDispatch(Component[CoreParameters]):
    """Accept a product's command, queue one for every part, and count the users of each table bank.

    ::

        command ─→ bank, number of sets ─┬→ queue ─→ outlier_split      for each vector
                                         ├→ queue ─→ clustering_unit
                                         ├→ …
                                         ├→ queue ─→ word_fetch         once
                                         ├→ …
                                         └→ queue ─→ results ─→ bank released

    There are two banks of tables. A command with new tables waits until they are loaded and
    then uses the other bank than the command before. Loading the next tables of a bank waits until
    the results of all its products have left, which is when their commands leave `results`.

    A command starts when there is room in the queue of `results`, so at most `IN_FLIGHT` are in
    flight, and is accepted with its last vector's. The parts must accept their commands of a
    product before its last result leaves: then no other queue overflows but `index_end`, which each
    vector waits for. ``results.ready`` says
    that it leaves, and so is high only for a command that is offered.

    Latency: 1 cycle from a command to the parts' commands, and one more for each further vector.
    Handshake: all outputs depend on registers only, but ``command.ready`` follows the command's own
    bits.
    """

    def ports(self) -> Ports:
        p = self.parameters
        layouts = command_layouts(p)
        return {
            "command": stream_in(p.command_layout, "Products."),
            "load_end": wire_in(1, "The last table row of a set is accepted in this cycle."),
            "load_bank": wire_out(1, "Bank to which tables are loaded now."),
            "load_room": wire_out(1, "Whether that bank is free, so that tables may be loaded."),
            **{name: stream_out(shape) for name, shape in layouts.items()},
        }

    def elaborate(self, platform):
        m = Module()
        p, command = self.parameters, self.command.payload
        loaded = Signal()  # tables are complete, no command has used them yet
        needs_tables = Signal()
        bank = Signal()  # of this command
        columns = Signal(range(p.n + 1))
        sets = Signal(range(p.sets + 1))
        vectors = Signal(range(p.vectors + 1))
        words = Signal(range(p.beats + 1))
        groups = Signal(range(p.groups + 1))
        lines = Signal(range((1 << p.activation_bits) + 1))
        vector = Signal(range(p.vectors))  # of the batch, whose commands are queued
        started = Signal()  # the command has begun
        push = Signal()  # a vector's commands are queued
        end = Signal()
        accept = Signal()
        rows_of_group = p.macs >> p.weight_bits
        most_lines = 1 << p.activation_bits
        # Numbers out of range are made legal here, once, so that no part can hang on a count of 0.
        # A function rebuilds the product table, so it takes a separate bank as well.
        m.d.comb += [
            needs_tables.eq(command.tables | command.replace),
            # Tables are loaded to the bank that the latest command does not use.
            bank.eq(Mux(needs_tables, self.load_bank, ~self.load_bank)),
            columns.eq(Mux(command.columns == 0, 1, command.columns)),
            sets.eq((columns + (p.lanes - 1)) >> (p.lanes.bit_length() - 1)),
            vectors.eq(at_most(command.vectors, p.vectors)),
            words.eq(Mux(command.words == 0, 1, command.words)),
            lines.eq(Mux(command.lines == 0, 1, at_most(command.lines, most_lines))),
            groups.eq((lines + (rows_of_group - 1)) >> (rows_of_group.bit_length() - 1)),
            started.eq(vector != 0),
            end.eq(vector + 1 >= vectors),  # no vectors count as one
            accept.eq(push & end),
            self.command.ready.eq(accept),
        ]
        with m.If(push):
            m.d.sync += vector.eq(vector + 1)
        with m.If(accept):
            m.d.sync += vector.eq(0)
        several = Mux(vectors == 0, 1, vectors)
        sizes = {"sets": sets, "vectors": several, "words": words, "groups": groups}
        fields = self._fields(bank, end, columns, sizes)
        room, next_room = self._queues(m, push, push & ~started, fields)
        allowed = next_room & (started | (room & (loaded | ~needs_tables)))
        # All parts get a command in the same cycle and work it off at their own pace: the queues
        # are why a part that is early cannot block one that is late. Room is tested once for a
        # whole batch, so a batch that has begun is never stuck half queued.
        m.d.comb += push.eq(self.command.valid & allowed)
        with m.If(self.load_end):
            m.d.sync += loaded.eq(1)
        with m.If(accept & needs_tables):
            m.d.sync += [loaded.eq(0), self.load_bank.eq(~self.load_bank)]

        # Loading overlaps with products that use the other bank: double buffering of the tables.
        users = self._users(m, accept, bank)
        m.d.comb += self.load_room.eq(~Mux(self.load_bank, *reversed(users)).any() & ~loaded)
        return m

    def _fields(self, bank: Signal, end: Signal, columns: Signal, sizes: dict) -> dict[str, dict]:
        """The parts' commands, by the names of :func:`command_layouts`.

        sizes
            ``sets``, ``vectors``, ``words`` and ``groups``, at least 1 each.
        """
        command = self.command.payload
        sets, groups, vectors = sizes["sets"], sizes["groups"], sizes["vectors"]
        norm = {name: command[name] for name in ("normalise", "inverse_k", "eps", "replace")}
        tag = Cat(bank, command.integer, command.signed, groups)
        table = {"columns": sets, "groups": groups, "bank": bank, "replace": command.replace}
        fetch = {name: sizes[name] for name in ("words", "sets", "vectors")}
        result = {"columns": columns, "vectors": vectors, "bank": bank}
        result |= {name: command[name] for name in ("partial", "softmax")}
        replace = {"replace": command.replace, "op": command.op, "bank": bank}
        return {
            "outlier_split": {"outliers": command.outliers},
            "clustering_unit": {"bank": bank},
            "rms_factor": norm | {"bank": bank, "end": end},
            "codebook_replacement": replace,
            "score_use": {"weighted": command.weighted},
            "index_end": {"end": end, "store": command.store},
            "list_end": {"end": end},
            "product_table": table,
            "outlier_list": {"columns": sets},
            "index_buffer": {"columns": sets, "tag": tag},
            "word_fetch": {"address": command.address} | fetch,
            "scale_replay": {"sets": sets, "vectors": vectors, "add": command.add},
            "results": result,
        }

    def _users(self, m: Module, accept: Signal, bank: Signal) -> list[Signal]:
        """Products in flight that use each bank: one more on accept, one less with the results.

        Modulo `IN_FLIGHT`, because all of them cannot use the bank that is loaded next, but for the
        first: the latest one uses the other.
        """
        users = [Signal(range(IN_FLIGHT), name=f"users_{n}") for n in (0, 1)]
        for n in (0, 1):
            acquire = Signal(name=f"acquire_{n}")
            release = Signal(name=f"release_{n}")
            m.d.comb += [
                acquire.eq(accept & (bank == n)),
                release.eq(self.results.ready & (self.results.payload.bank == n)),
            ]
            m.d.sync += users[n].eq(users[n] + acquire - release)
        return users

    def _queues(
        self, m: Module, vector: Value, first: Value, commands: dict
    ) -> tuple[Value, Value]:
        """Queue the commands of a vector, and with a product's first the product's.

        Returns whether there is room for a product's commands, and then for its vectors' in all
        queues but one: commands of `results` leave last, so those queues hold no more products.
        But results may leave while the vector's indices still wait to be stored, so whether
        `index_end` has room for this vector is returned, too.
        """
        for name, fields in commands.items():
            o = getattr(self, name)
            each = name in PER_VECTOR
            depth = IN_FLIGHT * self.parameters.vectors if each else IN_FLIGHT
            size = QueueParameters(len(Value.cast(o.payload)), depth)
            m.submodules[f"{name}_commands"] = queue = Queue(size, shape=o.payload.shape())
            m.d.comb += [
                queue.i.valid.eq(vector if each else first),
                o.valid.eq(queue.o.valid),
                queue.o.ready.eq(o.ready),
                Value.cast(o.payload).eq(Value.cast(queue.o.payload)),
                *(queue.i.payload[field].eq(value) for field, value in fields.items()),
            ]
            if name == "results":
                room = queue.i.ready
            if name == "index_end":
                next_room = queue.i.ready
        return room, next_room
