"""KLLM's accelerator: vectors in, products with K-Means matrices out (KLLM, Fig. 5)."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.float_format import FP16
from hw.arith.order_key import is_nan
from hw.component import Component
from hw.kllm.clustering_unit import ClusteringUnit
from hw.kllm.codebook_replacement import CodebookReplacement
from hw.kllm.core_parameters import IN_FLIGHT, CoreParameters
from hw.kllm.index_buffer import IndexBuffer
from hw.kllm.job_dispatch import JobDispatch
from hw.kllm.outlier_list import OutlierList
from hw.kllm.outlier_split import ONE, OutlierSplit
from hw.kllm.pe_lane import TOKEN, PeLane
from hw.kllm.product_table import ProductTable
from hw.kllm.rms_factor import RmsFactor
from hw.kllm.step_join import SHARED, StepJoin
from hw.kllm.word_fetch import WordFetch
from hw.stream.queue import Queue, QueueParameters

PRODUCTS, WEIGHT_CENTROIDS, MIDPOINTS, SQUARES, CENTROIDS = range(5)
"""Tables, as `load` numbers them."""


class KllmCoreParameters(CoreParameters):
    __doc__ = CoreParameters.__doc__


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

    Reset, at any time: all products and tables are forgotten, and tables are to be loaded again.
    The memory must not answer what was asked before, so it is reset as well.

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

    summary = "Vectors in, products with K-Means matrices out"
    source = "KLLM, Fig. 5"

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
        m.submodules.outlier_list = listing = OutlierList(p.listing)
        m.submodules.replace = replace = CodebookReplacement(p.replacing)
        m.submodules.norm = norm = RmsFactor(p.norming)
        m.submodules.table = table = ProductTable(p.table)
        m.submodules.dispatch = dispatch = JobDispatch(p)
        m.submodules.fetch = fetch = WordFetch(p)
        m.submodules.join = join = StepJoin(p)
        lanes = [PeLane(p.lane) for _ in range(p.lanes)]
        for number, lane in enumerate(lanes):
            m.submodules[f"lane_{number}"] = lane
        for name in ("job", "x", "response", "request"):
            inner = getattr(dispatch if name == "job" else fetch, name)
            outer = wiring.flipped(getattr(self, name))
            wiring.connect(m, *((inner, outer) if name == "request" else (outer, inner)))
        wiring.connect(m, fetch.vector, split.x)
        wiring.connect(m, dispatch.fetch, fetch.order)
        wiring.connect(m, dispatch.listing, listing.columns)
        wiring.connect(m, dispatch.indices, indices.replay)
        wiring.connect(m, replace.o, listing.i)
        wiring.connect(m, listing.o, join.rows)
        wiring.connect(m, indices.o, join.indices)
        wiring.connect(m, fetch.words, join.weights)
        fork(m, "pair", split.outliers, [self.outliers, norm.pairs])
        fork(m, "index", cluster.o, [indices.i, norm.indices])

        tables = self._load(m, dispatch, table, replace)
        self._front_end(m, split, cluster, replace, norm, dispatch.cluster, tables["midpoints"])
        self._replace(m, replace, table, dispatch.replace, dispatch.table, tables)
        tokens = self._normalise(m, norm, dispatch.norm, tables["squares"])
        m.d.comb += join.token.eq(tokens.i.valid & tokens.i.ready)
        self._step(m, join, lanes, tables["centroids"])
        self._feed(m, table, tokens.o, dispatch.tokens, lanes)
        self._collect(m, dispatch.results, lanes)
        return m

    def _queue(self, m: Module, name: str, shape) -> Queue:
        """A queue with room for each product in flight."""
        width = Signal(shape).shape()
        size = len(Value.cast(Signal(shape)))
        m.submodules[name] = queue = Queue(QueueParameters(size, IN_FLIGHT), shape=width)
        return queue

    def _load(
        self, m: Module, dispatch: JobDispatch, table: ProductTable, replace: CodebookReplacement
    ) -> dict[str, list[Signal]]:
        """Take tables; both banks' values of those that are not ProductTable's."""
        p, row = self._parameters, self.load.payload
        taken = Signal()
        m.d.comb += [
            self.load.ready.eq(dispatch.load_room & ~replace.write.valid),
            taken.eq(self.load.valid & self.load.ready),
            dispatch.load_end.eq(taken & row.last),
            replace.write.ready.eq(1),
            table.write.valid.eq((taken & (row.table == PRODUCTS)) | replace.write.valid),
            table.write.payload.bank.eq(dispatch.load_bank),
            table.write.payload.row.eq(row.row),
            table.write.payload.values.as_value().eq(row.values.as_value()),
        ]
        with m.If(replace.write.valid):
            m.d.comb += table.write.payload.eq(replace.write.payload)
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
                with m.If(taken & (row.table == number) & (dispatch.load_bank == bank)):
                    m.d.sync += kept.eq(row.values.as_value())
                tables[name].append(kept)
        return tables

    def _front_end(self, m: Module, split, cluster, replace, norm, orders, midpoints):
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
            chosen.eq(Mux(orders.payload.bank, *reversed(midpoints))),
            ready.eq(
                split.scale.valid & orders.valid & scales.i.ready & (gone | replace.scale.ready)
            ),
            scaled.eq(ready & cluster.scale.ready),
            # The function's work starts at once; the clustering unit takes the scale in the end.
            replace.scale.valid.eq(ready & ~gone),
            replace.scale.payload.eq(split.scale.payload),
            cluster.scale.valid.eq(ready),
            cluster.scale.payload.scale.eq(split.scale.payload),
            cluster.scale.payload.load.eq(1),
            split.scale.ready.eq(scaled),
            orders.ready.eq(scaled),
            scales.i.valid.eq(scaled),
            scales.i.payload.eq(split.scale.payload),
            cluster.midpoints.valid.eq(ready),
            cluster.midpoints.payload.eq(
                Array(chosen.word_select(n, FP16.width) for n in range(p.clustering.midpoints))[
                    number
                ]
            ),
        ]
        with m.If(cluster.midpoints.valid & cluster.midpoints.ready):
            m.d.sync += number.eq(Mux(number == p.clustering.midpoints - 1, 0, number + 1))
        with m.If(ready):
            m.d.sync += gone.eq(~scaled & (gone | replace.scale.ready))
        fork(m, "beat", split.o, [cluster.x, replace.i])

    def _replace(self, m: Module, replace, table, orders, replays, tables):
        """Tell CodebookReplacement what to do, and ProductTable when a table is rebuilt."""
        order, bank = replace.order.payload, orders.payload.bank
        m.d.comb += [
            replace.order.valid.eq(orders.valid),
            orders.ready.eq(replace.order.ready),
            order.replace.eq(orders.payload.replace),
            order.op.eq(orders.payload.op),
            order.bank.eq(bank),
            order.centroids.as_value().eq(Mux(bank, *reversed(tables["activations"]))),
            order.codebook.as_value().eq(Mux(bank, *reversed(tables["centroids"]))),
        ]
        rebuilt = Signal(range(IN_FLIGHT + 1))  # tables that have not been given out
        more, fewer = Signal(name="rebuilt_more"), Signal(name="rebuilt_fewer")
        given = Signal()
        waits = Signal()
        m.d.comb += [
            waits.eq(replays.payload.replace & ~rebuilt.any()),
            table.replay.valid.eq(replays.valid & ~waits),
            table.replay.payload.columns.eq(replays.payload.columns),
            table.replay.payload.bank.eq(replays.payload.bank),
            given.eq(table.replay.valid & table.replay.ready),
            replays.ready.eq(given),
            more.eq(replace.write.valid & replace.write.payload.row.all()),
            fewer.eq(given & replays.payload.replace),
        ]
        with m.If(more & ~fewer):
            m.d.sync += rebuilt.eq(rebuilt + 1)
        with m.Elif(fewer & ~more):
            m.d.sync += rebuilt.eq(rebuilt - 1)

    def _normalise(self, m: Module, norm: RmsFactor, orders, squares) -> Queue:
        """Tell RmsFactor what to do; the queue of vectors' tokens."""
        tokens = self._queue(m, "tokens", TOKEN)
        order = norm.order.payload
        s_a = norm.o.payload.s_a
        # The scale of a function's argument is in the products; a NaN must still spoil them.
        replaced = orders.payload.replace & ~is_nan(s_a)
        m.d.comb += [
            tokens.i.valid.eq(norm.o.valid),
            norm.o.ready.eq(tokens.i.ready),
            tokens.i.payload.s_a.eq(Mux(replaced, Const(ONE, FP16.width), s_a)),
            tokens.i.payload.r.eq(norm.o.payload.r),
            norm.order.valid.eq(orders.valid),
            orders.ready.eq(norm.order.ready),
            *(order[name].eq(orders.payload[name]) for name in ("normalise", "inverse_k", "eps")),
            order.squares.as_value().eq(Mux(orders.payload.bank, *reversed(squares))),
        ]
        return tokens

    def _step(self, m: Module, join: StepJoin, lanes, codebooks):
        """Give all lanes the same step, but its weights."""
        step = join.o.payload
        codebook = Signal(len(codebooks[0]))
        m.d.comb += [
            codebook.eq(Mux(step.bank, *reversed(codebooks))),
            join.o.ready.eq(lanes[0].i.ready),
        ]
        for number, lane in enumerate(lanes):
            fields = {name: step[name] for name in SHARED} | {
                "weight": step.weight[number],
                "scale": step.scale[number],
                "codebook": codebook,
            }
            m.d.comb += lane.i.valid.eq(join.o.valid)
            for name, value in fields.items():
                m.d.comb += Value.cast(lane.i.payload[name]).eq(Value.cast(value))

    def _feed(self, m: Module, table, tokens, orders, lanes):
        """Give all lanes the products of their groups, and each column its vector's token."""
        p = self._parameters
        column = Signal(range(1, p.sets + 1), init=1)
        final = Signal()
        token = Signal()
        m.d.comb += [
            table.o.ready.eq(lanes[0].products.ready),
            token.eq(tokens.valid & orders.valid),
            final.eq(token & lanes[0].token.ready & (column == orders.payload)),
            tokens.ready.eq(final),
            orders.ready.eq(final),
        ]
        with m.If(token & lanes[0].token.ready):
            m.d.sync += column.eq(Mux(final, 1, column + 1))
        for lane in lanes:
            m.d.comb += [
                lane.products.valid.eq(table.o.valid),
                lane.products.payload.as_value().eq(table.o.payload.as_value()),
                lane.token.valid.eq(token),
                lane.token.payload.eq(tokens.payload),
            ]

    def _collect(self, m: Module, orders, lanes):
        """Results of all lanes as one beat."""
        p, y = self._parameters, self.y
        done = Signal(range(p.n + 1))  # columns before
        left = Signal(range(p.n + 1))
        finished = Signal()  # a product's last results leave
        m.d.comb += [
            left.eq(orders.payload.columns - done),
            y.valid.eq(lanes[0].o.valid),
            y.payload.last.eq(left <= p.lanes),
            finished.eq(y.valid & y.ready & y.payload.last),
            orders.ready.eq(finished),
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
