"""Operands from a trace, and random FP16 numbers."""

import numpy as np

from golden.trace import Trace


def to_fp16(name: str, array: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """`array` as float16, and a note if some values exceed its range."""
    with np.errstate(over="ignore"):
        half = np.asarray(array).astype(np.float16)
    infinite = int(np.count_nonzero(np.isinf(half)))
    return half, [f"{infinite} values of {name} exceed FP16 and become infinite."] * bool(infinite)


def vectors_by_name(trace: Trace) -> dict[str, np.ndarray]:
    """``[any, width]`` arrays to take vectors from: activations, else keys, else weight columns."""
    if trace.x:
        return {f"x/{name}": array for name, array in trace.x.items()}
    if trace.k is not None:
        return {"k": trace.k.reshape(-1, trace.k.shape[-1])}
    return {f"w/{name}": array.T for name, array in trace.w.items()}


def numbers(kind: str, shape, rng: np.random.Generator) -> np.ndarray:
    """FP16 numbers: ``plain`` (about 1), ``any`` (finite), ``small`` (most subnormal), ``one`` (of
    both signs), or another kind: about 1 with some infinities, NaNs, limits and zeros."""
    bits = rng.integers(0, 1 << 16, shape).astype(np.uint16)
    infinite = bits & 0x7C00 == 0x7C00
    if kind == "plain":
        return np.asarray(rng.standard_normal(shape)).astype(np.float16)
    if kind == "any":
        bits = np.where(infinite, bits & 0xBFFF, bits)
    elif kind == "small":
        bits = bits & 0x8000 | (bits & 0x7FF) >> rng.integers(0, 11, shape).astype(np.uint16)
    elif kind == "one":
        bits = bits & 0x8000 | 0x3C00
    else:  # mostly finite, so that most sums are finite
        special = rng.random(shape) < rng.choice([0.02, 0.3])
        edges = rng.choice([0x7C00, 0x7C00, 0x7E00, 0x7D01, 0x7BFF, 0, 0], shape)
        bits = np.where(special, bits & 0x8000 | edges, bits & 0x8FFF | 0x3000)
    return np.asarray(bits).astype(np.uint16).view(np.float16)
