"""Testbench of codebook replacement: scales and vectors in, tables and vectors out.

A transaction is a vector.
"""

import numpy as np

from golden.arith.float_multiply import float_multiply
from golden.arith.formats import to_bits
from golden.kllm.element_function import element_function
from golden.kllm.kllm_core import front_end
from golden.trace import Trace
from hw.arith.float_format import FP16
from hw.kllm.codebook_replacement import CodebookReplacementParameters
from hw.kllm.element_function import Function
from sim.core import payload
from sim.core.stimulus import Stimulus
from sim.testbenches.kllm.exact_sums import numbers
from sim.testbenches.kllm.layers import layers_of
from sim.testbenches.strategies import sometimes

BEATS = 6  # of a vector
# Zeros, infinities, NaNs, subnormal numbers, the smallest and the largest normal ones, 1.
SPECIAL = np.array(
    [0, 0x7C00, 0x7E00, 0x7C01, 0x3FF, 0x400, 0x7BFF, 0x3C00, 3, 5, *(1 << np.arange(10))],
    np.uint16,
)


class CodebookReplacementTestbench:
    def default_vectors(self, parameters: CodebookReplacementParameters) -> int:
        return 300

    def stimulus(
        self,
        parameters: CodebookReplacementParameters,
        trace: Trace | None,
        vectors: int,
        seed: int,
    ) -> Stimulus:
        p = parameters
        rng = np.random.default_rng(seed)
        k = BEATS * p.lanes
        rows: list[tuple] = []
        notes: list[str] = []
        op: int | None  # a Function
        if trace is not None:
            layers, notes = layers_of(trace, k, 4, p.activation_bits, p.weight_bits, 1)
        for number in range(vectors):
            if trace is not None:
                layer = layers[number % len(layers)]
                x = layer.x[number // len(layers) % len(layer.x)]
                v = front_end(x[None], layer.tables, 1)
                one = (x, v.outlier[0], v.scale[0])
                op = None if number % 2 else Function.SILU
                rows.append((*one, layer.tables.activations, layer.tables.centroids, op))
                continue
            kind = int(rng.integers(0, 8))
            length = int(rng.integers(1, BEATS + 1)) * p.lanes
            outlier = rng.random(length) < rng.choice([0, 0.1, 1])
            centroids = operands(kind, p.centroids, rng)
            codebook = operands(kind, 1 << p.weight_bits, rng)
            op = int(rng.integers(0, 4)) if sometimes(rng, 0.7) else None
            x, scale = operands(kind, length, rng), operands(kind, (), rng)
            if kind == 7:  # very small numbers by large ones, with products in range
                codebook = rng.integers(1, 1 << rng.integers(1, 11, len(codebook)))
                large = sometimes(rng, 0.5, len(codebook))
                codebook = np.where(large, codebook * 16.0, codebook * 2.0**-24).astype(np.float16)
                centroids = rng.uniform(-17, 11, p.centroids).astype(np.float16)
                scale = np.asarray(rng.uniform(1, 2)).astype(np.float16)
                op = int(rng.choice([0, 0, 0, 1, 2, 3]))
            rows.append((x, outlier, scale, centroids, codebook, op))
        return build(p, rows, rng, notes)


testbench = CodebookReplacementTestbench()


def operands(kind: int, shape, rng: np.random.Generator) -> np.ndarray:
    """FP16: a kind of :func:`numbers`, special numbers, or numbers with e^x in range."""
    if kind < 4:
        return numbers(kind, shape, rng)
    if kind > 4:
        near = rng.uniform(-24, 24, shape) * 2.0 ** -rng.integers(0, 8, shape)
        return np.asarray(near).astype(np.float16)
    sign = rng.integers(0, 2, shape).astype(np.uint16) << np.uint16(15)
    return np.asarray(rng.choice(SPECIAL, shape) | sign).view(np.float16)


def build(p: CodebookReplacementParameters, rows: list[tuple], rng, notes: list[str]) -> Stimulus:
    """The stimulus of vectors: x, outlier, scale, centroids, codebook, function or None."""
    commands, counts = [], []
    none = np.zeros(0, int)
    # Empty arrays first, because no vector may have a function.
    writes: list[tuple] = [(none, none, np.zeros((0, 1 << p.weight_bits), np.uint16))]
    beats: list[tuple] = []
    results: list[tuple] = []
    banks = rng.integers(0, 2, len(rows))
    for (x, outlier, scale, centroids, codebook, op), bank in zip(rows, banks, strict=True):
        replace = op is not None
        code = int(op) if replace else int(rng.integers(0, 4))
        commands.append((replace, code, bank, to_bits(centroids), to_bits(codebook)))
        y = x
        if replace:
            with np.errstate(all="ignore"):
                y = np.where(outlier, element_function(x, code), x)
                new = element_function(float_multiply(centroids, scale), code)
            products = float_multiply(new[:, None], codebook)
            row = np.arange(p.centroids)
            writes.append((np.full(p.centroids, bank), row, to_bits(products)))
        mask = outlier.reshape(-1, p.lanes) @ (1 << np.arange(p.lanes))
        last = np.arange(len(mask)) == len(mask) - 1
        for into, values in ((beats, x), (results, y)):
            into.append((to_bits(values).reshape(-1, p.lanes), mask, last))
        counts.append(outlier.reshape(-1, p.lanes).sum(axis=1).tolist())

    def pack(shape, names, parts):
        fields = [np.concatenate(field) for field in zip(*parts, strict=True)]
        return payload.pack(shape, dict(zip(names, fields, strict=True)))

    names = ("replace", "op", "bank", "centroids", "codebook")
    command = [np.array(field) for field in zip(*commands, strict=True)]
    beat = ("values", "outlier", "last")
    replaced = np.array([row[-1] is not None for row in rows])
    number = np.arange(len(rows))
    return Stimulus(
        inputs={
            "command": payload.pack(p.command_layout, dict(zip(names, command, strict=True))),
            "scale": payload.pack(
                FP16.width, {"payload": to_bits(np.array([row[2] for row in rows]))}
            ),
            "i": pack(p.beat_layout, beat, beats),
        },
        outputs={
            "write": pack(p.write_layout, ("bank", "row", "values"), writes),
            "o": pack(p.beat_layout, beat, results),
        },
        transaction_of={
            "write": np.repeat(number[replaced], p.centroids),
            "o": np.repeat(number, [len(count) for count in counts]),
        },
        transactions=len(rows),
        cycles=p.cycles(counts, replaced.tolist()),
        notes=notes,
    )
