"""Operands that benches take from a trace."""

import numpy as np

from golden.trace import Trace


def to_fp16(name: str, array: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """`array` as float16, and a note if some of it is too large for that."""
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
