"""Payload words for the stream components' testbenches, of any width."""

from typing import TYPE_CHECKING

import numpy as np

from sim.testbenches.operands import to_fp16

if TYPE_CHECKING:
    from golden.trace import Trace


def beats(
    trace: "Trace | None", width: int, vectors: int, seed: int
) -> tuple[np.ndarray, list[str]]:
    """``uint32[vectors, words]`` of `width` bits each, and notes on how the trace was made to fit.

    From a trace: its values as FP16 bits one after the other, cut every `width` bits. Without one:
    corner words first, then random ones.
    """
    if trace is None:
        return pack(_corners_then_random(width, vectors, seed)), []
    name, values = _values(trace)
    needed = -(-vectors * width // 16)
    notes = [f"{name} is read as FP16 bits, cut into payloads of {width} bits."]
    if len(values) < needed:
        notes.append(f"Its {len(values)} values are repeated to fill {vectors} beats.")
    elif len(values) > needed:
        notes.append(f"Of its {len(values)} values the first {needed} are used.")
    half, remarks = to_fp16(name, values[:needed])
    notes += remarks
    halves = np.resize(half, needed).view(np.uint16)
    bits = np.unpackbits(halves.astype("<u2").view(np.uint8), bitorder="little")
    return pack(bits[: vectors * width].reshape(vectors, width)), notes


def pack(bits: np.ndarray) -> np.ndarray:
    """``uint8[beats, width]`` of bits, lowest first, as ``uint32[beats, words]``."""
    count, width = bits.shape
    padded = np.zeros((count, -(-width // 32) * 32), np.uint8)
    padded[:, :width] = bits
    return np.packbits(padded, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def unpack(packed: np.ndarray, width: int) -> np.ndarray:
    """The inverse of :func:`pack`."""
    raw = np.ascontiguousarray(packed, "<u4").view(np.uint8)
    return np.unpackbits(raw, axis=1, bitorder="little")[:, :width]


def _values(trace: "Trace") -> tuple[str, np.ndarray]:
    """The keys row by row, else the first activation or weight by name."""
    if trace.k is not None:
        return "k", trace.k.reshape(-1)
    kind, arrays = ("x", trace.x) if trace.x else ("w", trace.w)
    name = min(arrays)
    return f"{kind}/{name}", arrays[name].reshape(-1)


def _corners_then_random(width: int, vectors: int, seed: int) -> np.ndarray:
    """All zeros, all ones, alternating bits (two phases), one-hot words; then random bits."""
    bit = np.arange(width)
    corners = [bit * 0, bit * 0 + 1, bit % 2, 1 - bit % 2, *np.eye(width)]
    random = np.random.default_rng(seed).integers(0, 2, (vectors, width))
    return np.concatenate([np.array(corners), random]).astype(np.uint8)[:vectors]
