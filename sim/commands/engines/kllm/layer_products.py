"""Products of a layer's matrices, or of the output matrix, on KLLM's core (KLLM, III-D and IV)."""

import dataclasses
from collections.abc import Iterator
from functools import partial

import numpy as np

from golden.algorithms.kllm.activations import ActivationQuantizer
from golden.algorithms.kllm.fold import NORMED
from golden.algorithms.kllm.model import QuantizedLlama
from golden.algorithms.kllm.quantize import QuantizedWeights
from golden.algorithms.vectors import turns_of_layer
from golden.kllm.kllm_core import (
    Norm,
    Vectors,
    fixed_tables,
    front_end,
    multiply,
    parts_of,
    sums,
    tables_of,
)
from golden.lm.joint_products import STEPS
from golden.lm.weights import INPUTS
from hw.kllm.kllm_core import KllmCoreParameters
from sim.commands.engines.layer_vectors import VectorPart
from sim.commands.engines.part import LayerRun
from sim.testbenches.kllm.core.products import (
    Matrices,
    Product,
    Result,
    packed_inputs,
    pairs_of,
    stimulus_of,
    with_words_late,
)

HEAD = (("output",),)
"""The step of the output matrix."""


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """A product of a step: some rows of some columns of a matrix.

    name
        Name of the matrix.
    rows, columns
        Which of its rows and columns.
    first
        The matrix's first piece, with which its tables are loaded.
    add, partial
        Whether rows precede it, and whether rows follow.
    """

    name: str
    rows: slice
    columns: slice
    first: bool
    add: bool
    partial: bool


@dataclasses.dataclass(frozen=True, eq=False)
class LayerProducts:
    """What a layer's products are.

    matrices, quantizers
        Matrices by name, and how each of their inputs is quantised.
    norm
        RMSNorm of the inputs that are normalised in the product, or None.
    turns
        Turns of a head's pairs from one position to the next, if the core encodes positions.
    """

    matrices: dict[str, QuantizedWeights]
    quantizers: dict[str, ActivationQuantizer]
    rms_norm: Norm | None = None
    turns: np.ndarray | None = None

    @staticmethod
    def input_of(name: str) -> str:
        """The input of a matrix; the output matrix has a separate one."""
        return INPUTS.get(name, name)

    def norm(self, name: str) -> Norm | None:
        """What is done to the matrix's input in the product."""
        return self.rms_norm if name in (*NORMED, "output") else None


def products_of(model: QuantizedLlama) -> list[LayerProducts]:
    """Products of each layer, and of the output matrix if that is quantised."""
    norm = None
    if model.fused:
        norm = Norm(np.float32(1 / model.config.dim), np.float32(model.config.norm_eps))
    pairs = zip(model.matrices, model.activations, strict=True)
    found = [
        LayerProducts(*pair, norm, turns_of_layer(model, layer)) for layer, pair in enumerate(pairs)
    ]
    if model.head is not None:
        matrix, quantizer = model.head
        assert quantizer is not None  # as in every bit-exact model
        found.append(LayerProducts({"output": matrix}, {"output": quantizer}, norm))
    return found


class KllmLayer(VectorPart[KllmCoreParameters]):
    """Products of one layer or of the output matrix, by RTL and by the bit-exact model.

    model
        What is computed: matrices, how their inputs are quantised, and what is normalised.
    steps
        Names of matrices of one input each; what the core does to vectors beside them is one step
        more of each token.

    A matrix of more rows than the core's K is multiplied in parts, each with separate outliers and
    scale; one of more columns than N in several products. Tokens of a prompt are multiplied in
    batches of as many vectors as the core takes, which read a matrix once. ``cycles`` has the
    number of each token's steps, a batch's at its last token, ``predicted`` the cycle model's,
    which are the same if the memory keeps up, and never more; ``bits`` counts the output bits
    compared. All three are complete once everything submitted has run.
    """

    block = "kllm.kllm_core"

    def __init__(
        self, run: LayerRun, model: LayerProducts, steps: tuple[tuple[str, ...], ...] = STEPS
    ):
        self._model, self._steps, self._product_steps = model, steps, len(steps)
        self._p = parameters = run.parameters(KllmCoreParameters)
        self._tables, self._scales = {}, {}
        for name, matrix in model.matrices.items():
            codebooks = (model.quantizers[model.input_of(name)].codebook, matrix.codebook)
            self._tables[name], self._scales[name] = tables_of(*codebooks), matrix.scale
            if parameters.centroid_bits:
                self._tables[name], made = fixed_tables(*codebooks, parameters.centroid_bits)
                self._scales[name] = made.column_scales(matrix.scale)
        self._pieces = [[piece for name in names for piece in self._cut(name)] for names in steps]
        stored = Matrices(parameters)
        self._address = {}
        for piece in (piece for pieces in self._pieces for piece in pieces):
            weight, scale = self._weights(piece)
            self._address[self._place(piece)] = stored.add(weight, scale)
        super().__init__(run, {"memory": stored.memory()})
        self._rng = np.random.default_rng(run.layer)  # of bits without meaning
        self._ready: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._tokens = [0] * len(steps)  # that each step has had
        self.cycles: list[list[int]] = []
        self.predicted: list[list[int]] = []
        turns = np.zeros(0, np.int64) if model.turns is None else model.turns
        self._add_vectors(parameters.vector_path, turns, self._rng)

    def runs(self, tokens: int) -> int:
        """Each step of a batch, and each operation on a token's vectors."""
        return len(self._steps) * -(-tokens // self._p.vectors) + self._vector_runs * tokens

    def _cut(self, name: str) -> list[Piece]:
        p, shape = self._p, self._model.matrices[name].index.shape
        rows = parts_of(shape[0], p.k)
        columns = [slice(n, min(n + p.n, shape[1])) for n in range(0, shape[1], p.n)]
        last = len(rows) - 1
        return [
            Piece(name, part, chosen, number == at == 0, at > 0, at < last)
            for number, chosen in enumerate(columns)
            for at, part in enumerate(rows)
        ]

    def _weights(self, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        matrix = self._model.matrices[piece.name]
        index = np.ascontiguousarray(matrix.index[piece.rows, piece.columns])
        return index, self._scales[piece.name][piece.columns]

    @staticmethod
    def _place(piece: Piece) -> tuple[str, int, int]:
        return piece.name, piece.rows.start, piece.columns.start

    def multiply(self, name: str, x: np.ndarray) -> np.ndarray:
        """``float32[token, N]``: the FP16 results for tokens ``x [token, K]``, made FP16.

        The first matrix of an input computes the products of all that have this input; those that
        follow with the same `x` have their results ready.
        """
        step = next(number for number, names in enumerate(self._steps) if name in names)
        seen, result = self._ready.pop(name, (x[:0], x))
        if seen is x or np.array_equal(seen, x):
            return result
        compute = self._modelled if self._check else self._unchecked
        found = compute(step, x.astype(np.float16))
        self._ready |= {other: (x, y.astype(np.float32)) for other, y in found.items()}
        return self._ready.pop(name)[1]

    def _modelled(self, step: int, x: np.ndarray) -> dict[str, np.ndarray]:
        """A step by the bit-exact model; by the RTL too, but perhaps later."""
        # One codebook of activations, so that the vectors' split and indices are the same for all.
        tables = self._tables[self._steps[step][0]]
        split: dict[int, Vectors] = {}
        for piece in self._pieces[step]:
            if piece.rows.start not in split:
                part = x[:, piece.rows]
                split[piece.rows.start] = front_end(part, tables, self._outliers(piece))
        results: dict[str, list] = {name: [] for name in self._steps[step]}
        expected = []
        kept = None
        for piece in self._pieces[step]:
            v, (weight, scale) = split[piece.rows.start], self._weights(piece)
            kept = kept if piece.add else None
            y = invalid = np.zeros((len(x), 0))
            if piece.partial:
                kept = sums(v, self._tables[piece.name], weight, kept=kept)
            else:
                norm = self._model.norm(piece.name)
                y, invalid = multiply(
                    v, self._tables[piece.name], weight, scale, norm=norm, kept=kept
                )
                results[piece.name].append(y)
            expected.append((v, y, invalid))
        for batch, token in self._batches(step, len(x)):
            wanted = [
                Result(v.outlier[batch], pairs_of(v, batch), y[batch], invalid[batch], y[:0], v)
                for v, y, invalid in expected
            ]
            self._submit(partial(self._run, step, token, x[batch], wanted))
        return {name: np.concatenate(y, axis=1) for name, y in results.items()}

    def _outliers(self, piece: Piece) -> int:
        quantizer = self._model.quantizers[self._model.input_of(piece.name)]
        return quantizer.count(piece.rows.stop - piece.rows.start)

    def _run(self, step: int, token: int, x: np.ndarray, expected: list[Result]) -> None:
        """A step of the batch whose last token that is on the RTL, compared."""
        pieces = self._pieces[step]
        addresses = [self._address[self._place(piece)] for piece in pieces]
        p, products = self._p, self._products(step, x)
        stimulus = stimulus_of(p, products, addresses, expected, self._rng)
        stimulus = with_words_late(p, stimulus, products)
        # Beats too many belong to no product.
        names = [piece.name for piece in (*pieces, pieces[-1])]
        outcome = self._compared(
            *(token, stimulus),
            where=self._where(step),
            place=lambda found: f"matrix {names[found.transaction]}: ",
        )
        self.cycles[token][step] = outcome.cycles
        self.predicted[token][step] = stimulus.cycles

    def _unchecked(self, step: int, x: np.ndarray) -> dict[str, np.ndarray]:
        """A step by the RTL alone."""
        p, pieces = self._p, self._pieces[step]
        addresses = [self._address[self._place(piece)] for piece in pieces]
        given = [piece for piece in pieces if not piece.partial]
        widths = [piece.columns.stop - piece.columns.start for piece in given]
        sets = [-(-width // p.lanes) for width in widths]
        pairs = sum(max(1, self._outliers(piece)) for piece in pieces)
        rows: dict[str, list] = {name: [] for name in self._steps[step]}
        for batch, token in self._batches(step, len(x)):
            vectors = batch.stop - batch.start
            inputs = packed_inputs(p, self._products(step, x[batch]), addresses, self._rng)
            counts = {"outliers": vectors * pairs, "indices": 0, "y": vectors * sum(sets)}
            outcome = self._rtl(token, inputs, counts, where=self._where(step))
            self.cycles[token][step] = outcome.cycles
            beats = self._half(outcome, "y", "y", p.lanes).reshape(-1, vectors, p.lanes)
            parts = np.split(beats.swapaxes(0, 1), np.cumsum(sets)[:-1], axis=1)
            found: dict[str, list] = {name: [] for name in rows}
            for piece, part, width in zip(given, parts, widths, strict=True):
                found[piece.name].append(part.reshape(vectors, -1)[:, :width])
            for name, values in found.items():
                rows[name].append(np.concatenate(values, axis=1))
        return {name: np.concatenate(values) for name, values in rows.items()}

    def _batches(self, step: int, count: int) -> Iterator[tuple[slice, int]]:
        """Batches of a step's next tokens, each with the number of its last token."""
        first = self._tokens[step]
        self._tokens[step] += count
        self._count(self._tokens[step])
        if step == 0:
            self._latest = first
        for begin in range(0, count, self._p.vectors):
            end = min(begin + self._p.vectors, count)
            yield slice(begin, end), first + end - 1

    def _products(self, step: int, x: np.ndarray) -> list[Product]:
        """The products of a step, of a batch of vectors."""
        products = []
        for piece in self._pieces[step]:
            part = x[:, piece.rows]
            keep, norm = np.ones(part.shape, bool), self._model.norm(piece.name)
            products.append(
                Product(
                    *(part, keep, self._tables[piece.name], piece.first, *self._weights(piece)),
                    self._outliers(piece),
                    norm=None if piece.partial else norm,
                    add=piece.add,
                    partial=piece.partial,
                )
            )
        return products

    def _where(self, step: int) -> str:
        return f"matrix {', '.join(self._steps[step])}: "

    def bytes_moved(self) -> dict[str, int]:
        """Bytes that the core has read from the memory of its weights, scales included."""
        return {"weights_read": self._session.uses(contents=False)["memory"].bytes_read}
