"""Bit-exact model of the outlier split: outliers and scale of vectors (KLLM, III-D and IV)."""

import numpy as np

from golden.arith.formats import from_bits, quiet_nan
from golden.kllm.orizuru import pop_order


def outlier_split(
    x: np.ndarray, keep: np.ndarray, outliers: int
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Pairs, marks and scales of vectors.

    x, keep
        ``float16[T, K]``, ``bool[T, K]``: which values belong to the vector.
    outliers
        At each end.
    :returns: the pairs as :func:`pop_order` has them, ``outliers`` of each vector, or one that is
        not present, with
        ``max_repeated`` and ``min_repeated`` ``bool[T, outliers]`` added: the same element is in an
        earlier pair, or is this pair's ``max`` (for ``min``); ``bool[T, K]`` mask of the outliers;
        ``float16[T]`` scales: the larger magnitude of the next pair, 1 where that is 0, NaN where a
        kept value is NaN or infinite.
    """
    x = np.asarray(x, np.float16)
    # Vectors of fewer values than there are pairs are not popped beyond their end.
    short = ((0, 0), (0, max(0, outliers + 1 - x.shape[1])))
    popped = pop_order(np.pad(x, short), np.pad(keep, short), outliers + 1)
    outlier = np.zeros(x.shape, bool)
    rows = np.arange(len(x))
    if outliers == 0:
        blank = {name: np.zeros_like(array) for name, array in popped.items() if name != "invalid"}
    present = popped["present"][:, :outliers]
    repeated: dict[str, np.ndarray] = {
        f"{end}_repeated": np.zeros(present.shape, bool) for end in ("max", "min")
    }
    for number, valid in enumerate(present.T):
        for end in ("max", "min"):
            index = popped[f"{end}_index"][:, number]
            repeated[f"{end}_repeated"][:, number] = valid & outlier[rows, index]
            outlier[rows, index] |= valid
    ends = [popped[f"{end}_value"][:, -1] & 0x7FFF for end in ("max", "min")]
    largest = np.maximum(*ends)
    scale = from_bits(np.where(largest > 0, largest, 0x3C00).astype(np.uint16), np.float16)
    special = (keep & (x.view(np.uint16) & 0x7C00 == 0x7C00)).any(axis=1)
    nan = from_bits(np.uint16(quiet_nan(np.float16)), np.float16)
    pairs = {
        name: array if name == "invalid" else array[:, :outliers] for name, array in popped.items()
    }
    if outliers == 0:
        nothing: np.ndarray = np.zeros((len(x), 1), bool)
        pairs |= blank
        repeated = {f"{end}_repeated": nothing for end in ("max", "min")}
    return pairs | repeated, outlier, np.where(special, nan, scale)
