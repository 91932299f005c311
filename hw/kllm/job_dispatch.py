"""The accelerator's jobs, told to every part that has to do something for them (KLLM, Fig. 5)."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP32
from hw.component import Component
from hw.kllm.core_parameters import IN_FLIGHT, CoreParameters
from hw.stream.queue import Queue, QueueParameters


def order_layouts(p: CoreParameters) -> dict:
    """Shapes of what each part is told about a product, by the part's name.

    ``bank`` is that of the product's tables, ``columns`` and ``sets`` are at least 1, ``replays``
    the sets for which a vector's indices are given out.
    """
    columns, sets = range(p.n + 1), range(p.sets + 1)
    norm = {"normalise": 1, "inverse_k": FP32.width, "eps": FP32.width, "replace": 1, "bank": 1}
    return {
        "cluster": data.StructLayout({"bank": 1}),
        "norm": data.StructLayout(norm),
        "replace": data.StructLayout({"replace": 1, "op": 2, "bank": 1}),
        "listing": sets,
        "indices": p.gathering.replay_layout,
        "table": data.StructLayout({"columns": sets, "bank": 1, "replace": 1}),
        "fetch": data.StructLayout({"address": p.address_width, "sets": sets}),
        "tokens": sets,
        "results": data.StructLayout({"columns": columns, "bank": 1}),
    }


class JobDispatch(Component):
    """Accept jobs, queue an order for every part, and keep account of who uses which tables.

    There are two banks of tables. A job with tables of its own waits until they are loaded and
    then takes the other bank than the job before; loading that bank's next tables waits until the
    results of all its products have left, which is when their orders leave `results`.

    A job is accepted when each queue has room, so at most `IN_FLIGHT` are under way. Latency: 1
    cycle from a job to its orders. All outputs depend on registers only, but ``job.ready``, which
    follows the job's own bits.

    Members
    -------
    job : :py:`In(stream.Signature(parameters.job_layout))`
        Products.
    load_end : :py:`In(1)`
        The last of the tables that belong together is being taken.
    load_bank, load_room : :py:`Out(1)`
        Where tables go that are loaded now, and whether they may.
    cluster, norm, replace, listing, indices, table, fetch, tokens, results : :py:`Out(stream)`
        Orders, shaped as :func:`order_layouts` says.
    """

    def __init__(self, parameters: CoreParameters):
        self._parameters = parameters
        orders = order_layouts(parameters)
        super().__init__(
            {
                "job": In(stream.Signature(parameters.job_layout)),
                "load_end": In(1),
                "load_bank": Out(1),
                "load_room": Out(1),
                **{name: Out(stream.Signature(shape)) for name, shape in orders.items()},
            }
        )

    @property
    def parameters(self) -> CoreParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p, job, results = self._parameters, self.job.payload, self.results
        bank = Signal()  # tables of the latest product
        loaded = Signal()
        tables = Signal()
        own = Signal()
        columns = Signal(range(p.n + 1))
        sets = Signal(range(p.sets + 1))
        accept = Signal()
        m.d.comb += [
            tables.eq(job.tables | job.replace),
            own.eq(Mux(tables, self.load_bank, bank)),
            columns.eq(Mux(job.columns == 0, 1, job.columns)),
            sets.eq((columns + (p.lanes - 1)) >> (p.lanes.bit_length() - 1)),
            accept.eq(self.job.valid & self.job.ready),
        ]
        names = ("normalise", "inverse_k", "eps", "replace")
        room = self._queues(
            m,
            accept,
            {
                "cluster": {"bank": own},
                "norm": {name: job[name] for name in names} | {"bank": own},
                "replace": {"replace": job.replace, "op": job.op, "bank": own},
                "listing": sets,
                "indices": {"columns": sets, "tag": Cat(own, job.integer, job.normalise)},
                "table": {"columns": sets, "bank": own, "replace": job.replace},
                "fetch": {"address": job.address, "sets": sets},
                "tokens": sets,
                "results": {"columns": columns, "bank": own},
            },
        )
        m.d.comb += self.job.ready.eq(room & (loaded | ~tables))
        with m.If(self.load_end):
            m.d.sync += loaded.eq(1)
        with m.If(accept):
            m.d.sync += bank.eq(own)
            with m.If(tables):
                m.d.sync += [loaded.eq(0), self.load_bank.eq(~self.load_bank)]

        users = [Signal(range(IN_FLIGHT + 1), name=f"users_{n}") for n in (0, 1)]
        m.d.comb += self.load_room.eq(~Mux(self.load_bank, *reversed(users)).any() & ~loaded)
        finished = Signal()
        m.d.comb += finished.eq(results.valid & results.ready)
        for n in (0, 1):
            more = Signal(name=f"more_{n}")
            fewer = Signal(name=f"fewer_{n}")
            m.d.comb += [
                more.eq(accept & (own == n)),
                fewer.eq(finished & (results.payload.bank == n)),
            ]
            with m.If(more & ~fewer):
                m.d.sync += users[n].eq(users[n] + 1)
            with m.Elif(fewer & ~more):
                m.d.sync += users[n].eq(users[n] - 1)
        return m

    def _queues(self, m: Module, accept: Signal, orders: dict):
        """Queue these orders; whether all queues have room."""
        rooms = []
        for name, fields in orders.items():
            o = getattr(self, name)
            shape = Signal(o.payload.shape()).shape()
            size = QueueParameters(len(Value.cast(o.payload)), IN_FLIGHT)
            m.submodules[f"{name}_orders"] = queue = Queue(size, shape=shape)
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
