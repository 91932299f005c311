"""KLLM's accelerator: vectors in, products with K-Means matrices out (KLLM, Fig. 5)."""

from typing import Any

from amaranth.hdl import Array, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring

from hw.arith.bits.order_key import is_nan
from hw.arith.float_format import FP16
from hw.component import Component
from hw.kllm.clustering_unit import ClusteringUnit
from hw.kllm.codebook_replacement import CodebookReplacement
from hw.kllm.core.command_dispatch import CommandDispatch
from hw.kllm.core.core_parameters import CoreParameters
from hw.kllm.core.lane_array import collect_results, give_products, give_steps, make_lanes
from hw.kllm.core.scale_replay import ScaleReplay
from hw.kllm.core.score_path import ScorePath
from hw.kllm.core.step_join import StepJoin
from hw.kllm.core.table import Table
from hw.kllm.core.word_fetch import WordFetch
from hw.kllm.index_buffer import IndexBuffer
from hw.kllm.outlier_list import OutlierList
from hw.kllm.outlier_split import ONE, OutlierSplit
from hw.kllm.product_table import ProductTable
from hw.kllm.rms_factor import RmsFactor
from hw.ports import Ports, stream_in, stream_out
from hw.stream.combine import fork, pass_fields
from hw.stream.queue import Queue, QueueParameters


class KllmCoreParameters(CoreParameters):
    __doc__ = CoreParameters.__doc__


class KllmCore(Component[KllmCoreParameters]):
    """y[n] = round16((s_A sum count_n[i] P[i] + sum over outliers a[k] C_B[B[k, n]]) r s_B[n]).

    ::

        x ─→ ScorePath ─→ OutlierSplit ─┬─→ OutlierList ────────────────────┐
                 ↑          │ scale     └─→ ClusteringUnit ─┬─→ IndexBuffer ┤
                 │          │                               └─→ indices     ├─→ PeLane ─┐
                 │ request ┄ memory ┄ response ─→ WordFetch ────────────────┤   PeLane ─┼─→ y
                 │          └─→ RmsFactor ─→ ScaleReplay, ProductTable ─────┘           │
                 └──────────────────────────── scores ──────────────────────────────────┘

    Each command takes a batch of vectors from `x`, V' of them. A vector's largest and smallest
    values, as many as the command says, are kept in FP16; the others become indices of their
    nearest centroids. Then come the matrix's columns, `lanes` of them in each set, in B' words a
    set, B' = ceil(K' / W) for vectors of K' positions. A word holds the set's weight indices at W
    positions. A word of scales is ahead of every `scale_sets` sets. All words follow one another
    from the command's address on; a set is read once for all vectors of the batch.

    A matrix of more than K rows is multiplied in parts of its rows, by a command for each. The
    lanes keep the sums of a ``partial`` command and add them to the sums of the next one, which
    says ``add``. Each part's vector has separate outliers and a separate scale.

    Attention (section IV-A): a command that says ``store`` outputs its vectors' indices, for a
    matrix of keys (each a column, with its scale) or of values (each a row). The results of one
    with ``softmax`` are scores; the vectors of a later one that is ``weighted`` are their
    probabilities times `x`, such as the values' scales. The rows of two such products may wait for
    their vectors; the results of a third, and all that follow, wait for them.

    Beside the products and independent of them: with `vector_lanes`, residual sums and gated
    products are commands too, two vectors in, one out
    (:class:`hw.attention.vector_unit.VectorUnit`); with `rotary_pairs`, heads are turned by their
    position (:class:`hw.attention.rotary_encoding.RotaryEncoding`).

    Tables that belong together are loaded ahead of the first command that uses them, while earlier
    products are in flight. A command without new tables uses the tables of the command before;
    the first after reset must have some.

    Errors: a result that is NaN is flagged ``invalid``: every result of a vector with an infinity
    or a NaN, and every result of a column whose scale, product or centroid is infinite or NaN. A
    result too large for FP16 is infinite. 0 columns, vectors, words or lines count as 1. With other
    ``words`` than its vectors have, the results of a command and of all later ones are undefined.

    Latency: see `latency`. Throughput: with T rows of outliers in a vector, T = sum over its words
    of max(1, ceil(outliers in the word / entries)), and G' = ceil(lines 2^nW / macs) groups of
    products in use, one set every max(T, G') cycles for each vector of the batch, and one cycle
    more for every `scale_sets` sets, while the memory delivers B' words in that time; else at the
    memory's rate. Requests are up to `depth` words ahead, so that a memory latency of up to `depth`
    - 2 cycles costs nothing. The next batch is split, clustered and listed meanwhile, in about
    2 B + 2 * outliers + 2^nA cycles a vector, B = beats of the vector; the next product starts in
    the cycle after a product's last step if that has been long enough.

    Handshake: all lanes have the same control, so the first lane's valid and ready are used for
    all. ``y.valid`` depends on registers only. Overflow: none.

    Reset, at any time, discards all products and tables; tables must be loaded again. The memory
    must not answer earlier requests, so it is reset as well.

    Examples
    --------
    >>> from hw.kllm.kllm_core import KllmCore, KllmCoreParameters
    >>> parameters = KllmCoreParameters.preset("paper")
    >>> parameters.lanes, parameters.beats, parameters.groups
    (16, 8, 8)
    >>> parameters.sets * max(parameters.beats, parameters.groups)  # cycles of 4096 x 4096
    2048
    >>> [name for name, _ in KllmCore(parameters).command.payload.shape()][:3]
    ['vectors', 'words', 'outliers']
    """

    summary = "Vectors in, products with K-Means matrices out"
    source = "KLLM, Fig. 5"

    def ports(self) -> Ports:
        p = self.parameters
        return {
            "tables": stream_in(p.table_layout, "Rows of tables."),
            "command": stream_in(p.command_layout, "Products."),
            "x": stream_in(
                p.outlier_split.input_layout, "Vectors, as many for each command as it says."
            ),
            "outliers": stream_out(p.outlier_split.pair_layout, "Each vector's outliers."),
            "indices": stream_out(
                p.stored_layout, "Indices of vectors whose command says ``store``."
            ),
            **p.memory.ports(reads_only=True),
            "y": stream_out(p.output_layout, "Results."),
            **p.vector_path.ports(),
        }

    def elaborate(self, platform):
        m = Module()
        p = self.parameters
        m.submodules.split = split = OutlierSplit(p.outlier_split)
        m.submodules.cluster = cluster = ClusteringUnit(p.clustering_unit)
        m.submodules.index_buffer = index_buffer = IndexBuffer(p.index_buffer)
        m.submodules.outlier_list = outlier_list = OutlierList(p.outlier_list)
        m.submodules.replace = replace = CodebookReplacement(p.codebook_replacement)
        m.submodules.norm = norm = RmsFactor(p.rms_factor)
        table = None if p.centroid_bits else ProductTable(p.product_table)
        if table is not None:
            m.submodules.table = table
        m.submodules.dispatch = dispatch = CommandDispatch(p)
        m.submodules.fetch = fetch = WordFetch(p)
        m.submodules.join = join = StepJoin(p)
        m.submodules.scale_replay = scales = ScaleReplay(p)
        m.submodules.score_path = path = ScorePath(p)
        # All lanes get the same steps and differ in their weights, so the first one's handshake is
        # used for all.
        lanes = make_lanes(m, p)
        # The core's own ports.
        wiring.connect(m, wiring.flipped(self.command), dispatch.command)
        wiring.connect(m, wiring.flipped(self.x), path.x)
        wiring.connect(m, dispatch.score_use, path.command)
        wiring.connect(m, path.o, split.x)
        wiring.connect(m, wiring.flipped(self.response), fetch.response)
        wiring.connect(m, fetch.request, wiring.flipped(self.request))
        # A vector: split, then listed and clustered.
        fork(m, "pair", split.outliers, [self.outliers, norm.pairs])
        pass_fields(m, replace.o, outlier_list.i)
        stored = stream.Signature(p.clustering_unit.output_layout).create(path=("stored",))
        fork(m, "index", cluster.o, [index_buffer.i, norm.indices, stored])
        self._end(m, dispatch.index_end, cluster.o, index_buffer.i)
        self._end(m, dispatch.list_end, replace.o, outlier_list.i)
        # Rows of outliers, indices and weights meet as the lanes' steps.
        wiring.connect(m, outlier_list.o, join.rows)
        wiring.connect(m, index_buffer.o, join.indices)
        wiring.connect(m, fetch.words, join.weights)
        # Commands that need nothing else.
        wiring.connect(m, dispatch.word_fetch, fetch.command)
        wiring.connect(m, dispatch.index_buffer, index_buffer.replay)
        wiring.connect(m, dispatch.scale_replay, scales.command)
        for name, sink in (("outliers", split.wanted), ("columns", outlier_list.columns)):
            commands = dispatch.outlier_split if name == "outliers" else dispatch.outlier_list
            m.d.comb += [
                sink.valid.eq(commands.valid),
                sink.payload.eq(commands.payload[name]),
                commands.ready.eq(sink.ready),
            ]

        tables = self._load(m, dispatch, table, replace)
        # The last indices of a vector may wait for `indices` as the scale of the next one comes.
        kept = self._queue(m, "stored_scales", 2)
        self._front_end(m, split, cluster, replace, norm, dispatch.clustering_unit, tables, kept)
        self._output_indices(m, stored, dispatch.index_end.payload.store, kept.o)
        self._replace(m, replace, table, dispatch, tables)
        done = self._normalise(m, norm, dispatch.rms_factor, tables["squares"], scales)
        m.d.comb += join.scale_done.eq(done)
        give_steps(m, p, join, lanes, tables)
        give_products(m, table, scales.o, lanes)
        collect_results(m, p, dispatch.results, lanes, self.y, path)
        # These vectors are in FP16: a sum or product of two has no indices.
        p.vector_path.add_to(m, self)
        return m

    def _queue(self, m: Module, name: str, depth: int) -> Queue:
        """A queue of scales of vectors."""
        m.submodules[name] = queue = Queue(QueueParameters(FP16.width, depth), shape=FP16)
        return queue

    def _end(self, m: Module, commands, source, sink) -> None:
        """Mark the last vector of a batch; the command leaves with its vector's last beat."""
        last = source.valid & source.ready & source.payload.last
        m.d.comb += [sink.payload.end.eq(commands.payload.end), commands.ready.eq(last)]

    def _load(
        self,
        m: Module,
        dispatch: CommandDispatch,
        table: ProductTable | None,
        replace: CodebookReplacement,
    ) -> dict[str, list[Signal]]:
        """Accept tables; returns, by name, both banks' registers of those outside ProductTable."""
        p, row = self.parameters, self.tables.payload
        taken = Signal()
        # A row of a rebuilt table has priority over one that is loaded.
        m.d.comb += [
            self.tables.ready.eq(dispatch.load_room & ~replace.write.valid),
            taken.eq(self.tables.valid & self.tables.ready),
            dispatch.load_end.eq(taken & row.last),
            replace.write.ready.eq(1),
        ]
        if table is not None:
            m.d.comb += [
                table.write.valid.eq((taken & (row.table == Table.PRODUCTS)) | replace.write.valid),
                table.write.payload.bank.eq(dispatch.load_bank),
                table.write.payload.row.eq(row.row),
                table.write.payload.values.as_value().eq(row.values.as_value()),
            ]
            with m.If(replace.write.valid):
                m.d.comb += table.write.payload.eq(replace.write.payload)
        # Tables outside ProductTable: a register for each bank, read as a whole.
        tables: dict[str, list[Signal]] = {}
        kinds: dict[str, tuple[Table, Any, int]] = {
            "centroids": (Table.WEIGHT_CENTROIDS, 1, 1 << p.weight_bits),
            "midpoints": (Table.MIDPOINTS, 1, p.clustering_unit.midpoints),
            "squares": (Table.SQUARES, 1, 1 << p.activation_bits),
            "activations": (Table.CENTROIDS, 1, 1 << p.activation_bits),
        }
        if p.centroid_bits:
            kinds |= {
                "fixed_activations": (Table.FIXED, ~row.row[0], 1 << p.activation_bits),
                "fixed_weights": (Table.FIXED, row.row[0], 1 << p.weight_bits),
            }
        for name, (number, chosen, size) in kinds.items():
            tables[name] = []
            for bank in (0, 1):
                stored = Signal(FP16.width * size, name=f"{name}_{bank}", reset_less=True)
                # A small table arrives as one row and is used whole, so it is a register and no
                # memory.
                ours = (row.table == number) & chosen & (dispatch.load_bank == bank)
                with m.If(taken & ours):
                    m.d.sync += stored.eq(row.values.as_value())
                tables[name].append(stored)
        return tables

    def _output_indices(self, m: Module, stored, store, scales) -> None:
        """Output the indices of vectors that are to be stored; others are dropped here."""
        out = self.indices
        m.d.comb += [
            # Vectors whose command does not say `store` are dropped here.
            out.valid.eq(stored.valid & store),
            stored.ready.eq(out.ready | ~store),
            *(
                Value.cast(out.payload[name]).eq(Value.cast(stored.payload[name]))
                for name in ("keep", "last")
            ),
            *(
                index.eq(found & kept.replicate(len(found)))
                for index, found, kept in zip(
                    out.payload.index, stored.payload.index, stored.payload.keep, strict=True
                )
            ),
            out.payload.scale.eq(scales.payload),
            scales.ready.eq(stored.valid & stored.ready & stored.payload.last),
        ]

    def _front_end(self, m: Module, split, cluster, replace, norm, commands, tables, kept):
        """Give each vector's scale to all that need it, and midpoints to the clustering unit.

        The codebook replacement starts as soon as the scale is offered; the clustering unit accepts
        it when its midpoints are scaled, and with it scale and command leave. The next scale comes
        when both have accepted all of the vector.
        """
        count = self.parameters.clustering_unit.midpoints
        # RmsFactor has the counts of two vectors at most; the last indices of a third one may wait
        # for it as the scale of a fourth comes.
        scales = self._queue(m, "scales", 4)
        wiring.connect(m, scales.o, norm.scale)
        scaled = stream.Signature(FP16).create(path=("scaled",))
        fork(m, "scale", split.scale, [scaled, replace.scale, scales.i, kept.i])
        # Midpoints are read one by one while the clustering unit scales them.
        number = Signal(range(max(2, count)))  # of the midpoint
        midpoints = Signal(FP16.width * count, name="midpoints")
        m.d.comb += [
            # The vector's command is there before its scale is, which the clustering unit is ready
            # for when it is offered.
            midpoints.eq(Mux(commands.payload.bank, *reversed(tables["midpoints"]))),
            commands.ready.eq(split.scale.ready),
            cluster.scale.valid.eq(scaled.valid),
            scaled.ready.eq(cluster.scale.ready),
            cluster.scale.payload.scale.eq(scaled.payload),
            cluster.scale.payload.load.eq(1),
            cluster.midpoints.valid.eq(scaled.valid),
            cluster.midpoints.payload.eq(
                Array(midpoints.word_select(n, FP16.width) for n in range(count))[number]
            ),
        ]
        # After a vector's last midpoint, which is accepted with its scale, comes the first.
        with m.If(cluster.midpoints.ready):
            m.d.sync += number.eq(number + 1)
        with m.If(cluster.scale.ready):
            m.d.sync += number.eq(0)
        fork(m, "beat", split.o, [cluster.x, replace.i])

    def _replace(self, m: Module, replace, table, dispatch: CommandDispatch, tables):
        """Command CodebookReplacement, and ProductTable once a table is rebuilt."""
        commands, replays = dispatch.codebook_replacement, dispatch.product_table
        # Lanes that multiply centroids have no product table to rebuild.
        has_function = commands.payload.replace & (table is not None)
        command, bank = replace.command.payload, commands.payload.bank
        m.d.comb += [
            replace.command.valid.eq(commands.valid),
            commands.ready.eq(replace.command.ready),
            command.replace.eq(has_function),
            command.op.eq(commands.payload.op),
            command.bank.eq(bank),
            command.centroids.as_value().eq(Mux(bank, *reversed(tables["activations"]))),
            command.codebook.as_value().eq(Mux(bank, *reversed(tables["centroids"]))),
        ]
        if table is None:
            m.d.comb += replays.ready.eq(1)
            return
        # For each bank, whether a vector has passed the replacement, which has rebuilt the table by
        # then, and its product has not read all of the table.
        passed = Signal(2)
        issued = Signal()
        waits = Signal()
        m.d.comb += [
            # A product whose table is rebuilt must not read rows of the vector before.
            waits.eq(replays.payload.replace & ~passed.bit_select(replays.payload.bank, 1)),
            table.replay.valid.eq(replays.valid & ~waits),
            table.replay.payload.columns.eq(replays.payload.columns),
            table.replay.payload.groups.eq(replays.payload.groups),
            table.replay.payload.bank.eq(replays.payload.bank),
            issued.eq(table.replay.valid & table.replay.ready),
            replays.ready.eq(issued),
        ]
        for number in (0, 1):
            with m.If(commands.ready & (bank == number)):
                m.d.sync += passed[number].eq(1)
            with m.Elif(issued & (replays.payload.bank == number)):
                m.d.sync += passed[number].eq(0)

    def _normalise(self, m: Module, norm: RmsFactor, commands, squares, scales) -> Value:
        """Command RmsFactor; returns whether a batch's last scale is stored in this cycle."""
        command = norm.command.payload
        s_a = norm.o.payload.s_a
        # With a function, the scale is already in the products. A NaN must still reach the result.
        replaced = commands.payload.replace & ~is_nan(s_a) & (not self.parameters.centroid_bits)
        m.d.comb += [
            scales.i.valid.eq(norm.o.valid),
            norm.o.ready.eq(scales.i.ready),
            scales.i.payload.s_a.eq(Mux(replaced, Const(ONE, FP16.width), s_a)),
            scales.i.payload.r.eq(norm.o.payload.r),
            norm.command.valid.eq(commands.valid),
            commands.ready.eq(norm.command.ready),
            *(
                command[name].eq(commands.payload[name])
                for name in ("normalise", "inverse_k", "eps")
            ),
            command.squares.as_value().eq(Mux(commands.payload.bank, *reversed(squares))),
        ]
        # The command leaves with its vector's result, for which there is always room.
        return norm.o.valid & commands.payload.end
