"""KLLM's accelerator: vectors in, products with K-Means matrices out (KLLM, Fig. 5)."""

import dataclasses

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16, FP32
from hw.arith.order_key import is_nan
from hw.component import Component
from hw.kllm.clustering_unit import ClusteringUnit
from hw.kllm.codebook_replacement import CodebookReplacement
from hw.kllm.core_parameters import KllmCoreParameters
from hw.kllm.index_buffer import IndexBuffer
from hw.kllm.outlier_list import OutlierList
from hw.kllm.outlier_split import ONE, OutlierSplit
from hw.kllm.pe_lane import TOKEN, PeLane
from hw.kllm.product_table import ProductTable
from hw.kllm.rms_factor import RmsFactor
from hw.stream.queue import Queue, QueueParameters
from hw.stream.sequential_reader import SequentialReader

IN_FLIGHT = 4
"""Products between acceptance of their jobs and their last results."""

PRODUCTS, WEIGHT_CENTROIDS, MIDPOINTS, SQUARES, CENTROIDS = range(5)
"""Tables, as `load` numbers them."""


@dataclasses.dataclass(frozen=True)
class Banks:
    """Which tables are loaded next, whether they are, and whether nobody uses them."""

    loading: Signal
    loaded: Signal
    free: Signal


class KllmCore(Component):
    """y[n] = round16((s_A sum count_n[i] P[i] + sum over outliers a[k] C_B[B[k, n]]) r s_B[n]).

    ::

        x ─→ OutlierSplit ─┬─→ OutlierList ───────────────┐
              │ scale      └─→ ClusteringUnit ─→ IndexBuffer ─┐
              │                                               ├─→ PeLane ─┐
              │   request ┄ memory ┄ response ─→ reader ──────┤   PeLane ─┴─→ y
              └─────────→ s_A ────────────────── ProductTable ┘

    Each job takes one vector from `x`. The vector's `outliers` largest and smallest values stay
    as they are; the others become indices of their nearest centroids. Then come the matrix's
    columns, `lanes` of them in each set, B' words a set, B' = ceil(K' / W) for a vector of K'
    positions: the set's indices at W positions and, of each column, its scale, of which the last
    word's counts. Words lie one after another from the job's address on.

    Tables that belong together are loaded ahead of the job that is the first to use them, while
    earlier products are under way. A job without tables of its own has those of the one before;
    the first after reset must have some.

    Results that are NaN are ``invalid``. A vector with an infinity or a NaN has no others; nor has
    a column whose scale, or a product or centroid that it needs, is none. Results too large are
    infinite. 0 columns count as 1.

    Latency: see `latency`. Throughput: with T rows of outliers a column, T = sum over its words of
    max(1, ceil(outliers there / ports)), one set every max(T, G) cycles, while the memory gives B'
    words in that time; else at the memory's rate. The next vector is split, clustered and listed
    meanwhile, in about 2 B + 2 * outliers + 2^nA cycles, B = beats of the vector; the next product
    starts in the cycle after a product's last step if that has been long enough.

    Handshake: all lanes have the same control, so that of the first is everyone's. ``y.valid``
    depends on registers only. Overflow: none.

    Members
    -------
    load : :py:`In(stream.Signature(parameters.load_layout))`
        Tables.
    job : :py:`In(stream.Signature(parameters.job_layout))`
        Products.
    x : :py:`In(stream.Signature(parameters.splitting.input_layout))`
        Vectors.
    outliers : :py:`Out(stream.Signature(parameters.splitting.pair_layout))`
        Each vector's outliers.
    request : :py:`Out(stream.Signature(parameters.reading.request_layout))`
        To the memory.
    response : :py:`In(stream.Signature(parameters.reading.response_layout(word_layout)))`
        From the memory, in any order.
    y : :py:`Out(stream.Signature(parameters.output_layout))`
        Results.
    """

    def __init__(self, parameters: KllmCoreParameters):
        p = self._parameters = parameters
        super().__init__(
            {
                "load": In(stream.Signature(p.load_layout)),
                "job": In(stream.Signature(p.job_layout)),
                "x": In(stream.Signature(p.splitting.input_layout)),
                "outliers": Out(stream.Signature(p.splitting.pair_layout)),
                "request": Out(stream.Signature(p.reading.request_layout)),
                "response": In(stream.Signature(p.reading.response_layout(p.word_layout))),
                "y": Out(stream.Signature(p.output_layout)),
            }
        )

    @property
    def parameters(self) -> KllmCoreParameters:
        return self._parameters

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        m.submodules.split = split = OutlierSplit(p.splitting)
        m.submodules.cluster = cluster = ClusteringUnit(p.clustering)
        m.submodules.indices = indices = IndexBuffer(p.gathering)
        m.submodules.listing = listing = OutlierList(p.listing)
        m.submodules.replace = replace = CodebookReplacement(p.replacing)
        m.submodules.norm = norm = RmsFactor(p.norming)
        m.submodules.table = table = ProductTable(p.table)
        m.submodules.reader = reader = SequentialReader(p.reading, p.word_layout)
        lanes = [PeLane(p.lane) for _ in range(p.lanes)]
        for number, lane in enumerate(lanes):
            m.submodules[f"lane_{number}"] = lane
        fork(m, "pair", split.outliers, [self.outliers, norm.pairs])
        fork(m, "index", cluster.o, [indices.i, norm.indices])
        wiring.connect(m, reader.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), reader.response)

        finished = Signal()  # a product's last results leave
        orders, banks = self._dispatch(m, finished)
        tables = self._load(m, banks, table, replace)
        self._front_end(m, split, cluster, replace, norm, orders["front"], tables["midpoints"])
        wiring.connect(m, replace.o, listing.i)
        self._replace(m, replace, table, orders["replace"], orders["table"], tables)
        tokens = self._normalise(m, norm, orders["norm"], tables["squares"])
        self._read(m, orders["reader"], split, reader)
        wiring.connect(m, orders["list"].o, listing.columns)
        wiring.connect(m, orders["indices"].o, indices.replay)
        self._step(m, listing, indices, reader, lanes, tables["centroids"], tokens)
        self._feed(m, table, tokens, orders["token"], lanes)
        self._collect(m, orders["results"], lanes, finished)
        return m

    def _queue(self, m: Module, name: str, shape) -> Queue:
        """A queue with room for each product in flight."""
        width = Signal(shape).shape()
        size = len(Value.cast(Signal(shape)))
        m.submodules[name] = queue = Queue(QueueParameters(size, IN_FLIGHT), shape=width)
        return queue

    def _dispatch(self, m: Module, finished: Signal) -> tuple[dict[str, Queue], Banks]:
        """Accept jobs and tell every part what it will have to do."""
        p, job = self._parameters, self.job.payload
        bank = Signal()  # tables of the latest product
        loading = Signal()  # those that are loaded next
        loaded = Signal()
        users = [Signal(range(IN_FLIGHT + 1), name=f"users_{n}") for n in (0, 1)]
        tables = Signal()
        own = Signal()
        columns = Signal(range(p.n + 1))
        sets = Signal(range(p.sets + 1))
        m.d.comb += [
            tables.eq(job.tables | job.replace),
            own.eq(Mux(tables, loading, bank)),
            columns.eq(Mux(job.columns == 0, 1, job.columns)),
            sets.eq((columns + (p.lanes - 1)) >> (p.lanes.bit_length() - 1)),
        ]
        free = Signal()  # nobody uses the tables that are loaded next
        m.d.comb += free.eq(~Mux(loading, users[1], users[0]).any())

        # Squares are not queued, but looked up where they are needed.
        norm = {"normalise": 1, "inverse_k": FP32.width, "eps": FP32.width, "replace": 1}
        replace = {"replace": 1, "op": 2}
        table = data.StructLayout({"columns": range(p.sets + 1), "bank": 1, "replace": 1})
        result = data.StructLayout({"columns": range(p.n + 1), "bank": 1})
        command = data.StructLayout({"address": p.address_width, "sets": range(p.sets + 1)})
        fields = {
            "front": (data.StructLayout({"bank": 1}), {"bank": own}),
            "norm": (
                data.StructLayout(norm | {"bank": 1}),
                {name: job[name] for name in norm} | {"bank": own},
            ),
            "replace": (
                data.StructLayout(replace | {"bank": 1}),
                {name: job[name] for name in replace} | {"bank": own},
            ),
            "list": (range(p.sets + 1), sets),
            "indices": (
                p.gathering.replay_layout,
                {"columns": sets, "tag": Cat(own, job.integer, job.normalise)},
            ),
            "table": (table, {"columns": sets, "bank": own, "replace": job.replace}),
            "reader": (command, {"address": job.address, "sets": sets}),
            "token": (range(p.sets + 1), sets),
            "results": (result, {"columns": columns, "bank": own}),
        }
        orders = {
            name: self._queue(m, f"{name}_orders", shape) for name, (shape, _) in fields.items()
        }
        accept = Signal()
        room = Cat(order.i.ready for order in orders.values()).all()
        m.d.comb += [
            self.job.ready.eq(room & (loaded | ~tables)),
            accept.eq(self.job.valid & self.job.ready),
        ]
        for name, (_, values) in fields.items():
            order = orders[name].i
            m.d.comb += order.valid.eq(accept)
            if isinstance(values, dict):
                m.d.comb += [order.payload[field].eq(value) for field, value in values.items()]
            else:
                m.d.comb += order.payload.eq(values)
        with m.If(accept):
            m.d.sync += bank.eq(own)
            with m.If(tables):
                m.d.sync += [loaded.eq(0), loading.eq(~loading)]
        for n in (0, 1):
            more = Signal(name=f"more_{n}")
            fewer = Signal(name=f"fewer_{n}")
            m.d.comb += [
                more.eq(accept & (own == n)),
                fewer.eq(finished & (orders["results"].o.payload.bank == n)),
            ]
            with m.If(more & ~fewer):
                m.d.sync += users[n].eq(users[n] + 1)
            with m.Elif(fewer & ~more):
                m.d.sync += users[n].eq(users[n] - 1)
        return orders, Banks(loading, loaded, free)

    def _load(
        self, m: Module, banks: Banks, table: ProductTable, replace: CodebookReplacement
    ) -> dict[str, list[Signal]]:
        """Take tables; both banks' values of those that are not ProductTable's."""
        p, row = self._parameters, self.load.payload
        taken = Signal()
        m.d.comb += [
            self.load.ready.eq(banks.free & ~banks.loaded & ~replace.write.valid),
            taken.eq(self.load.valid & self.load.ready),
            replace.write.ready.eq(1),
            table.write.valid.eq((taken & (row.table == PRODUCTS)) | replace.write.valid),
            table.write.payload.bank.eq(banks.loading),
            table.write.payload.row.eq(row.row),
            table.write.payload.values.as_value().eq(row.values.as_value()),
        ]
        with m.If(replace.write.valid):
            m.d.comb += table.write.payload.eq(replace.write.payload)
        with m.If(taken & row.last):
            m.d.sync += banks.loaded.eq(1)
        tables = {}
        kinds = {
            "centroids": (WEIGHT_CENTROIDS, 1 << p.weight_bits),
            "midpoints": (MIDPOINTS, p.clustering.midpoints),
            "squares": (SQUARES, 1 << p.activation_bits),
            "activations": (CENTROIDS, 1 << p.activation_bits),
        }
        for name, (number, size) in kinds.items():
            tables[name] = []
            for bank in (0, 1):
                kept = Signal(FP16.width * size, name=f"{name}_{bank}", reset_less=True)
                with m.If(taken & (row.table == number) & (banks.loading == bank)):
                    m.d.sync += kept.eq(row.values.as_value())
                tables[name].append(kept)
        return tables

    def _front_end(self, m: Module, split, cluster, replace, norm, orders: Queue, midpoints):
        """Vectors to indices, outliers and scales."""
        p = self._parameters
        scales = self._queue(m, "scales", FP16.width)
        wiring.connect(m, scales.o, norm.scale)
        ready = Signal()
        scaled = Signal()
        gone = Signal()
        number = Signal(range(max(2, p.clustering.midpoints)))
        chosen = Signal(len(midpoints[0]), name="midpoints")
        m.d.comb += [
            chosen.eq(Mux(orders.o.payload.bank, *reversed(midpoints))),
            ready.eq(
                split.scale.valid & orders.o.valid & scales.i.ready & (gone | replace.scale.ready)
            ),
            scaled.eq(ready & cluster.scale.ready),
            # The function's work starts at once; the clustering unit takes the scale in the end.
            replace.scale.valid.eq(ready & ~gone),
            replace.scale.payload.eq(split.scale.payload),
            cluster.scale.valid.eq(ready),
            cluster.scale.payload.scale.eq(split.scale.payload),
            cluster.scale.payload.load.eq(1),
            split.scale.ready.eq(scaled),
            orders.o.ready.eq(scaled),
            scales.i.valid.eq(scaled),
            scales.i.payload.eq(split.scale.payload),
            cluster.midpoints.valid.eq(ready),
            cluster.midpoints.payload.eq(chosen.word_select(number, FP16.width)),
        ]
        with m.If(cluster.midpoints.valid & cluster.midpoints.ready):
            m.d.sync += number.eq(Mux(number == p.clustering.midpoints - 1, 0, number + 1))
        with m.If(ready):
            m.d.sync += gone.eq(~scaled & (gone | replace.scale.ready))
        fork(m, "beat", split.o, [cluster.x, replace.i])

    def _replace(self, m: Module, replace, table, orders: Queue, replays: Queue, tables):
        """Tell CodebookReplacement what to do, and ProductTable when a table is rebuilt."""
        order, bank = replace.order.payload, orders.o.payload.bank
        m.d.comb += [
            replace.order.valid.eq(orders.o.valid),
            orders.o.ready.eq(replace.order.ready),
            order.replace.eq(orders.o.payload.replace),
            order.op.eq(orders.o.payload.op),
            order.bank.eq(bank),
            order.centroids.as_value().eq(Mux(bank, *reversed(tables["activations"]))),
            order.codebook.as_value().eq(Mux(bank, *reversed(tables["centroids"]))),
        ]
        rebuilt = Signal(range(IN_FLIGHT + 1))  # tables that have not been given out
        more, fewer = Signal(name="rebuilt_more"), Signal(name="rebuilt_fewer")
        given = Signal()
        waits = Signal()
        m.d.comb += [
            waits.eq(replays.o.payload.replace & ~rebuilt.any()),
            table.replay.valid.eq(replays.o.valid & ~waits),
            table.replay.payload.columns.eq(replays.o.payload.columns),
            table.replay.payload.bank.eq(replays.o.payload.bank),
            given.eq(table.replay.valid & table.replay.ready),
            replays.o.ready.eq(given),
            more.eq(replace.write.valid & replace.write.payload.row.all()),
            fewer.eq(given & replays.o.payload.replace),
        ]
        with m.If(more & ~fewer):
            m.d.sync += rebuilt.eq(rebuilt + 1)
        with m.Elif(fewer & ~more):
            m.d.sync += rebuilt.eq(rebuilt - 1)

    def _normalise(self, m: Module, norm: RmsFactor, orders: Queue, squares) -> Queue:
        """Tell RmsFactor what to do; the queue of vectors' tokens."""
        tokens = self._queue(m, "tokens", TOKEN)
        order = norm.order.payload
        s_a = norm.o.payload.s_a
        # The scale of a function's argument is in the products; a NaN must still spoil them.
        replaced = orders.o.payload.replace & ~is_nan(s_a)
        m.d.comb += [
            tokens.i.valid.eq(norm.o.valid),
            norm.o.ready.eq(tokens.i.ready),
            tokens.i.payload.s_a.eq(Mux(replaced, Const(ONE, FP16.width), s_a)),
            tokens.i.payload.r.eq(norm.o.payload.r),
            norm.order.valid.eq(orders.o.valid),
            orders.o.ready.eq(norm.order.ready),
            *(order[name].eq(orders.o.payload[name]) for name in ("normalise", "inverse_k", "eps")),
            order.squares.as_value().eq(Mux(orders.o.payload.bank, *reversed(squares))),
        ]
        return tokens

    def _read(self, m: Module, orders: Queue, split, reader):
        """Pass vectors on, and ask for as many words of each set as a vector takes."""
        p = self._parameters
        beat = Signal(range(p.splitting.beats))
        part = Signal(range(p.counters))
        word = Signal(range(p.beats))
        taken = Signal()
        ended = Signal()
        words = self._queue(m, "vector_words", range(p.beats + 1))
        m.d.comb += [
            split.x.valid.eq(self.x.valid & words.i.ready),
            self.x.ready.eq(split.x.ready & words.i.ready),
            taken.eq(self.x.valid & self.x.ready),
            ended.eq(self.x.payload.last | (beat == p.splitting.beats - 1)),
            words.i.valid.eq(taken & ended),
            words.i.payload.eq(word + 1),
        ]
        for name in ("values", "keep", "last"):
            m.d.comb += Value.cast(split.x.payload[name]).eq(Value.cast(self.x.payload[name]))
        with m.If(taken):
            m.d.sync += [beat.eq(beat + 1), part.eq(part + 1)]
            with m.If(part == p.counters - 1):
                m.d.sync += [part.eq(0), word.eq(word + 1)]
            with m.If(ended):
                m.d.sync += [beat.eq(0), part.eq(0), word.eq(0)]

        following = Signal(p.address_width, reset_less=True)
        asked = Signal(range(1, p.sets + 1), init=1)
        address = Signal(p.address_width)
        ask = Signal()
        final = Signal()
        m.d.comb += [
            reader.command.valid.eq(orders.o.valid & words.o.valid),
            reader.command.payload.address.eq(address),
            reader.command.payload.words.eq(words.o.payload),
            address.eq(Mux(asked == 1, orders.o.payload.address, following)),
            final.eq(asked == orders.o.payload.sets),
            ask.eq(reader.command.valid & reader.command.ready),
            orders.o.ready.eq(ask & final),
            words.o.ready.eq(ask & final),
        ]
        with m.If(ask):
            m.d.sync += [
                following.eq(address + words.o.payload),
                asked.eq(Mux(final, 1, asked + 1)),
            ]

    def _step(self, m: Module, listing, indices, reader, lanes, codebooks, tokens):
        """Join a row of outliers, the indices and the weights at its positions."""
        row, word, weights = listing.o, indices.o, reader.o
        ready = Signal()
        valid = Signal()
        taken = Signal()
        bank, integer, normalise = word.payload.tag
        # A factor that takes its time would fill the lanes with sums that wait for it.
        known = Signal(range(IN_FLIGHT + 1))  # tokens there are of products that have steps left
        new = Signal(name="new_token")
        old = Signal(name="old_token")
        m.d.comb += [
            new.eq(tokens.i.valid & tokens.i.ready),
            old.eq(taken & row.payload.last & word.payload.end),
        ]
        with m.If(new & ~old):
            m.d.sync += known.eq(known + 1)
        with m.Elif(old & ~new):
            m.d.sync += known.eq(known - 1)
        m.d.comb += [
            ready.eq(lanes[0].i.ready),
            valid.eq(row.valid & word.valid & weights.valid & (known.any() | ~normalise)),
            taken.eq(valid & ready),
            row.ready.eq(taken),
            word.ready.eq(taken & row.payload.advance),
            weights.ready.eq(taken & row.payload.advance),
        ]
        codebook = Signal(len(codebooks[0]))
        m.d.comb += codebook.eq(Mux(bank, *reversed(codebooks)))
        for number, lane in enumerate(lanes):
            step = lane.i.payload
            m.d.comb += [
                lane.i.valid.eq(valid),
                step.activation.as_value().eq(word.payload.index.as_value()),
                step.mask.as_value().eq(word.payload.keep.as_value()),
                step.integer.eq(integer),
                step.entries.as_value().eq(row.payload.entries.as_value()),
                step.codebook.as_value().eq(codebook),
                step.weight.as_value().eq(weights.payload.data.weight[number].as_value()),
                step.scale.eq(weights.payload.data.scale[number]),
                step.advance.eq(row.payload.advance),
                step.last.eq(row.payload.last),
            ]

    def _feed(self, m: Module, table, tokens: Queue, orders: Queue, lanes):
        """Give all lanes the products of their groups, and each column its vector's token."""
        p = self._parameters
        column = Signal(range(1, p.sets + 1), init=1)
        final = Signal()
        token = Signal()
        m.d.comb += [
            table.o.ready.eq(lanes[0].products.ready),
            token.eq(tokens.o.valid & orders.o.valid),
            final.eq(token & lanes[0].token.ready & (column == orders.o.payload)),
            tokens.o.ready.eq(final),
            orders.o.ready.eq(final),
        ]
        with m.If(token & lanes[0].token.ready):
            m.d.sync += column.eq(Mux(final, 1, column + 1))
        for lane in lanes:
            m.d.comb += [
                lane.products.valid.eq(table.o.valid),
                lane.products.payload.as_value().eq(table.o.payload.as_value()),
                lane.token.valid.eq(token),
                lane.token.payload.eq(tokens.o.payload),
            ]

    def _collect(self, m: Module, orders: Queue, lanes, finished: Signal):
        """Results of all lanes as one beat."""
        p, y = self._parameters, self.y
        done = Signal(range(p.n + 1))  # columns before
        left = Signal(range(p.n + 1))
        m.d.comb += [
            left.eq(orders.o.payload.columns - done),
            y.valid.eq(lanes[0].o.valid),
            y.payload.last.eq(left <= p.lanes),
            finished.eq(y.valid & y.ready & y.payload.last),
            orders.o.ready.eq(finished),
        ]
        for number, lane in enumerate(lanes):
            keep = Signal(name=f"keep_{number}")
            m.d.comb += [
                lane.o.ready.eq(y.ready),
                keep.eq(left > number),
                y.payload.y[number].eq(lane.o.payload.y & keep.replicate(FP16.width)),
                y.payload.invalid[number].eq(lane.o.payload.invalid & keep),
                y.payload.keep[number].eq(keep),
            ]
        with m.If(y.valid & y.ready):
            m.d.sync += done.eq(Mux(finished, 0, done + p.lanes))


def fork(m: Module, name: str, source, sinks: list):
    """Give each beat to all sinks, to each as soon as it is ready."""
    gone = [Signal(name=f"{name}_gone_{n}") for n in range(len(sinks))]
    passed = [sink.ready | past for sink, past in zip(sinks, gone, strict=True)]
    m.d.comb += source.ready.eq(Cat(passed).all())
    for sink, past in zip(sinks, gone, strict=True):
        m.d.comb += sink.valid.eq(source.valid & ~past)
        with m.If(source.valid):
            m.d.sync += past.eq(~source.ready & (past | sink.ready))
        for field, _ in Signal(sink.payload.shape()).shape():
            m.d.comb += Value.cast(sink.payload[field]).eq(Value.cast(source.payload[field]))
