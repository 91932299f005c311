"""Testbench of the accelerator: tables, vectors and a memory of weights in, results out.

A transaction is a product of a vector and a matrix.
"""

import dataclasses

import numpy as np

from golden.arith.formats import to_bits
from golden.kllm.cycles import Timing, Work, core_cycles, listing_of
from golden.kllm.element_function import SILU
from golden.kllm.kllm_core import Norm, Tables, front_end, kllm_core, tables_of
from golden.trace import Trace
from hw.kllm.kllm_core import (
    IN_FLIGHT,
    KllmCoreParameters,
    Table,
)
from sim.core import payload
from sim.core.memory import Memory
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.kllm.pe_lane import numbers
from sim.testbenches.strategies import sometimes


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """One product, a command of the core.

    x, keep
        ``[K]``.
    tables
        Tables of the product; ``new_tables``: they are loaded for it.
    weight, scale
        ``[K, N]``, ``float16[N]``.
    """

    x: np.ndarray
    keep: np.ndarray
    tables: Tables
    new_tables: bool
    weight: np.ndarray
    scale: np.ndarray
    integer: bool = False
    norm: Norm | None = None
    function: int | None = None

    def results(self, outliers: int) -> tuple[np.ndarray, np.ndarray]:
        y, invalid = kllm_core(
            self.x[None],
            self.tables,
            self.weight,
            self.scale,
            outliers,
            keep=self.keep[None],
            integer=self.integer,
            norm=self.norm,
            function=self.function,
        )
        return y[0], invalid[0]


class KllmCoreTestbench:
    def default_vectors(self, parameters: KllmCoreParameters) -> int:
        return 8 if parameters.k <= 64 else 4

    def stimulus(
        self, parameters: KllmCoreParameters, trace: Trace | None, vectors: int, seed: int
    ) -> Stimulus:
        rng = np.random.default_rng(seed)
        if trace is None:
            products = random_products(parameters, vectors, rng)
            return build(parameters, fit_memory(parameters, products), rng, [])
        products, notes = real_products(parameters, trace, vectors)
        return build(parameters, fit_memory(parameters, products), rng, notes)

    def picture(self, parameters: KllmCoreParameters, trace: Trace, figure) -> str:
        """One real product, against that of the operands in float64."""
        p = parameters
        products, notes = real_products(p, trace, 1, min(p.n, 256))
        product = products[0]
        y, _ = product.results(p.outliers)
        weights = product.tables.centroids.astype(np.float64)[product.weight]
        exact = product.x.astype(np.float64) @ (weights * product.scale.astype(np.float64))
        axes = figure.subplots()
        axes.plot(exact, y.astype(np.float64), ".")
        axes.axline((0, 0), slope=1, color="0.7", zorder=0)
        axes.set_xlabel("product of the vector itself")
        axes.set_ylabel("product of its indices and outliers")
        error = np.linalg.norm(y - exact) / np.linalg.norm(exact)
        caption = (
            f"{len(y)} columns of one product; the vector's quantisation to "
            f"{p.activation_bits} bits with {2 * p.outliers} outliers costs {error:.1%}."
        )
        return " ".join([caption, *notes])


testbench = KllmCoreTestbench()


def real_products(
    p: KllmCoreParameters, trace: Trace, count: int, columns: int | None = None
) -> tuple[list[Product], list[str]]:
    """Vectors of each layer in turn by their matrix of `columns` columns, a dozen if not given."""
    columns = columns or min(p.n, 12)
    layers, notes = layers_of(trace, p.k, columns, p.activation_bits, p.weight_bits, p.outliers)
    products = []
    for number in range(count):
        # Two vectors by each matrix.
        layer = layers[number // 2 % len(layers)]
        x = layer.x[(number // (2 * len(layers)) * 2 + number % 2) % len(layer.x)]
        index, scale = layer.weights.index, layer.weights.scale
        # Of every four, the second has the tables of the first, the third is normalised, and the
        # last has SiLU applied to it.
        turn = number % 4
        products.append(
            Product(
                x,
                np.ones(p.k, bool),
                layer.tables,
                turn != 1,
                index,
                scale,
                norm=Norm(np.float32(1 / p.k), np.float32(1e-5)) if turn == 2 else None,
                function=SILU if turn == 3 else None,
            )
        )
    return products, notes


def random_products(p: KllmCoreParameters, count: int, rng: np.random.Generator) -> list[Product]:
    """Vectors of every length and kind, small matrices, integers, repeated centroids."""
    products: list[Product] = []
    for number in range(count):
        kind = int(rng.integers(0, 6))
        length = int(
            rng.choice([p.k, p.k, int(rng.integers(1, p.k + 1)), min(p.k, 2 * p.outliers + 1)])
        )
        small, large = (int(rng.integers(1, min(p.n, most) + 1)) for most in (4, 24))
        columns = int(
            rng.choice([1, min(p.n, p.lanes + 1), small, large, min(p.n, 9), min(p.n, 24)])
        )
        if number == count - 1:
            columns = 1  # the number of cycles shows how late the first set is
        x = rng.standard_normal(length).astype(np.float16)
        keep = sometimes(rng, 1, length)
        if kind == 0:
            x[:] = x[0] * rng.integers(0, 2)  # zeros, or ties and counts at their maximum
        elif kind == 1:
            keep = sometimes(rng, 0.8, length)
        elif kind == 2 and number % 2:
            x = numbers(3, length, rng).copy()
            x[rng.integers(0, length)] = rng.choice([np.inf, -np.inf, np.nan])
        elif kind == 3:
            x = numbers(1, length, rng)
        elif kind == 4:
            # All equal but one, the rest repeated centroids.
            x[:] = 1
        new_tables = number == 0 or products[-1].function is not None or sometimes(rng, 0.6)
        if new_tables:
            widest = rng.choice([1, 1, 4])
            a = np.sort(rng.uniform(-widest, widest, 1 << p.activation_bits)).astype(np.float16)
            b = rng.standard_normal(1 << p.weight_bits).astype(np.float16)
            if kind == 4:
                a, b = a[np.arange(len(a)) // 4 * 4], np.resize(b[:3], len(b))
            tables = tables_of(a, b)
            if kind == 5:
                lines = 2.0 ** np.arange(len(a))[:, None] * b
                tables = Tables(
                    np.where(np.arange(len(a))[:, None] < p.activation_bits, lines, 0).astype(
                        np.float16
                    ),
                    b,
                    (np.arange(len(a) - 1) + 0.5).astype(np.float16) / np.float16(len(a) - 1),
                    tables.squares,
                    tables.activations,
                )
            if sometimes(rng, 0.4):  # as no squares are
                size = 2.0 ** rng.integers(-4, 12, len(a))
                squares = (rng.uniform(-1, 3, len(a)) * size).astype(np.float16)
                tables = dataclasses.replace(tables, squares=squares)
            if sometimes(rng, 0.1):
                tables.products[tuple(rng.integers(0, s) for s in tables.products.shape)] = np.inf
        else:
            tables = products[-1].tables
        weight = rng.integers(0, 1 << p.weight_bits, (length, columns))
        if kind == 0:
            weight[:] = weight[0]
        scale = numbers(0 if sometimes(rng, 0.8) else 3, columns, rng)
        integer = new_tables and kind == 5 or (not new_tables and products[-1].integer)
        eps = rng.choice([0, 1e-5, 1])
        norm = Norm(np.float32(1 / length), np.float32(eps)) if sometimes(rng, 0.5) else None
        # Often one after another.
        again = number > 0 and products[-1].function is not None
        function = None
        if new_tables and sometimes(rng, 0.7 if again else 0.3):
            function = int(rng.choice([0, 1, 1, 2, 3]))
        products.append(
            Product(x, keep, tables, new_tables, weight, scale, integer, norm, function)
        )
    return products


def words_of(p: KllmCoreParameters, product: Product) -> dict[str, np.ndarray]:
    """Fields of the words of a product's matrix, in order of address."""
    length, columns = product.weight.shape
    words, sets = -(-length // p.segment), -(-columns // p.lanes)
    weight = np.zeros((words * p.segment, sets * p.lanes), np.int64)
    weight[:length, :columns] = product.weight
    scale = np.zeros(sets * p.lanes, np.int64)
    scale[:columns] = to_bits(product.scale)
    weight = weight.reshape(words, p.segment, sets, p.lanes).transpose(2, 0, 3, 1)
    fields = {
        f"weight[{lane}]": weight[:, :, lane].reshape(-1, p.segment) for lane in range(p.lanes)
    }
    scale = np.repeat(scale.reshape(sets, p.lanes), words, axis=0)
    return fields | {"scale": scale}


def tables_beats(
    p: KllmCoreParameters, tables: Tables, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Beats of `load` for one set of tables, in any order."""
    rows = [*((Table.PRODUCTS, row, values) for row, values in enumerate(tables.products))]
    rows += [(Table.WEIGHT_CENTROIDS, 0, tables.centroids), (Table.MIDPOINTS, 0, tables.midpoints)]
    rows += [(Table.SQUARES, 0, tables.squares), (Table.CENTROIDS, 0, tables.activations)]
    rows = [rows[number] for number in rng.permutation(len(rows))]
    values = np.zeros((len(rows), 1 << max(p.activation_bits, p.weight_bits)), np.int64)
    for number, (_, _, row) in enumerate(rows):
        values[number, : len(row)] = to_bits(row)
    return {
        "table": np.array([row[0] for row in rows]),
        "row": np.array([row[1] for row in rows]),
        "values": values,
        "last": np.arange(len(rows)) == len(rows) - 1,
    }


def fit_memory(p: KllmCoreParameters, products: list[Product]) -> list[Product]:
    """The products with matrices that together fit the address width.

    Matrices are cut to the columns that fit alone. In a full memory a product has the matrix of an
    earlier one, and its vector is cut or repeated to the length of that one.
    """
    rows, used = 1 << p.address_width, 0
    fitted: list[Product] = []
    stored: set[tuple[bytes, bytes]] = set()  # matrices in memory
    for product in products:
        length, columns = product.weight.shape
        words = -(-length // p.segment)
        kept = min(columns, rows // words * p.lanes)
        product = dataclasses.replace(
            product, weight=product.weight[:, :kept], scale=product.scale[:kept]
        )
        key = (product.weight.tobytes(), product.scale.tobytes())
        needed = words * -(-kept // p.lanes)
        if key not in stored and used + needed > rows:
            earlier = fitted[len(fitted) % len(stored)]
            length = len(earlier.x)
            product = dataclasses.replace(
                product,
                x=np.resize(product.x, length),
                keep=np.resize(product.keep, length),
                weight=earlier.weight,
                scale=earlier.scale,
            )
        elif key not in stored:
            stored.add(key)
            used += needed
        fitted.append(product)
    return fitted


def build(
    p: KllmCoreParameters, products: list[Product], rng: np.random.Generator, notes: list[str]
) -> Stimulus:
    """The stimulus of these products, one after the other."""
    lanes = 16
    loads, work, commands, beats, words, results, pairs = [], [], [], [], [], [], []
    address = 0
    stored = {}  # matrices are in memory once
    for product in products:
        if product.new_tables:
            loads.append(tables_beats(p, product.tables, rng))
        key = (product.weight.tobytes(), product.scale.tobytes())
        if key not in stored:
            words.append(words_of(p, product))
            stored[key] = address
            address += len(words[-1]["scale"])
        length, columns = product.weight.shape
        commands.append(
            (
                columns,
                stored[key],
                product.integer,
                product.new_tables,
                product.function,
                product.norm,
            )
        )
        count = -(-length // lanes)
        bits = rng.integers(0, 1 << 16, count * lanes)
        bits[:length] = to_bits(product.x)
        kept = np.zeros(count * lanes, bool)
        kept[:length] = product.keep
        full = count == p.outlier_split.beats
        if length == p.k:  # positions beyond the core's end are not kept
            kept[length:] = sometimes(rng, 0.5, count * lanes - length)
        last = np.arange(count) == count - 1
        if full:
            last &= sometimes(rng, 0.75)
        mask = kept.reshape(count, lanes) @ (1 << np.arange(lanes))
        beats.append({"values": bits.reshape(count, lanes), "keep": mask, "last": last})
        vectors = front_end(product.x[None], product.tables, p.outliers, product.keep[None])
        work.append(
            Work(
                *listing_of(vectors.outlier[0], p.segment, lanes, p.entries),
                sets=-(-columns // p.lanes),
                new_tables=product.new_tables,
                normalise=product.norm is not None,
                function=function_cycles(p, product, vectors.outlier[0]),
            )
        )
        found = vectors.pairs
        fields = {
            f"{end}.{name}": found[f"{end}_{name}"][0]
            for end in ("max", "min")
            for name in ("index", "value", "repeated")
        }
        fields["present"] = found["present"][0]
        fields["last"] = np.arange(p.outliers) == p.outliers - 1
        pairs.append(fields)
        y, invalid = product.results(p.outliers)
        sets = -(-columns // p.lanes)
        padded = np.zeros((3, sets * p.lanes), np.int64)
        padded[:, :columns] = to_bits(y), np.ones(columns), invalid
        padded = padded.reshape(3, sets, p.lanes)
        powers = 1 << np.arange(p.lanes)
        results.append(
            {
                "y": padded[0],
                "keep": padded[1] @ powers,
                "invalid": padded[2] @ powers,
                "last": np.arange(sets) == sets - 1,
            }
        )
    joined = {
        name: _join(parts)
        for name, parts in {
            "loads": loads,
            "beats": beats,
            "words": words,
            "results": results,
            "pairs": pairs,
        }.items()
    }
    *others, functions, norms = zip(*commands, strict=True)
    columns, start, integer, new_tables = (np.array(a) for a in others)
    unused = Norm(np.float32(np.nan), np.float32(np.nan))
    constants = {
        name: to_bits(np.array([getattr(norm or unused, name) for norm in norms], np.float32))
        for name in ("inverse_k", "eps")
    }
    number = np.arange(len(products))
    return Stimulus(
        inputs={
            "load": payload.pack(p.load_layout, joined["loads"]),
            "command": payload.pack(
                p.command_layout,
                {
                    "columns": columns,
                    "address": start,
                    "integer": integer,
                    "tables": new_tables,
                    "normalise": np.array([norm is not None for norm in norms]),
                    **constants,
                    "replace": np.array([function is not None for function in functions]),
                    "op": np.array([function or 0 for function in functions]),
                },
            ),
            "x": payload.pack(p.outlier_split.input_layout, joined["beats"]),
        },
        outputs={
            "outliers": payload.pack(p.outlier_split.pair_layout, joined["pairs"]),
            "y": payload.pack(p.output_layout, joined["results"]),
        },
        transaction_of={
            "outliers": np.repeat(number, p.outliers),
            "y": np.repeat(number, [len(r["last"]) for r in results]),
        },
        transactions=len(products),
        cycles=core_cycles(timing_of(p), work)[-1].result + 1,
        notes=notes,
        memories={
            "weights": Memory(payload.pack(p.word_layout, joined["words"]), "request", "response")
        },
    )


def function_cycles(p: KllmCoreParameters, product: Product, outlier: np.ndarray):
    """Cycles that a function takes for each beat's outliers; None without one."""
    if product.function is None:
        return None
    padded = np.zeros(-(-len(outlier) // 16) * 16, bool)
    padded[: len(outlier)] = outlier
    count = padded.reshape(-1, 16).sum(axis=1)
    return [p.codebook_replacement.wait(outliers) for outliers in count.tolist()]


def timing_of(p: KllmCoreParameters) -> Timing:
    """The cycle model's constants of a core."""
    return Timing(
        load_rows=(1 << p.activation_bits) + len(Table) - 1,  # one row of each other table
        table_rows=1 << p.activation_bits,
        search=p.outlier_split.search,
        setup=p.clustering_unit.setup,
        counted=p.rms_factor.column_counter.latency,
        summed=p.rms_factor.sum_latency - p.rms_factor.column_counter.latency,
        root=p.rms_factor.inverse_rms.latency,
        replace=p.codebook_replacement.rebuild,
        groups=p.groups,
        stages=p.counter_stages,
        tail=p.lane.latency - p.counter_stages,
        in_flight=IN_FLIGHT,
    )


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
