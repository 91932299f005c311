"""Decisions on the sense lines: the top k rows, the accumulation, the row to evict.

Rows are addressed from 0 along the last axis, with any axes before it. Unused rows are ignored.
"""

import numpy as np


def top_k(
    scores: np.ndarray, k: int, used: np.ndarray | None = None, fill: bool = True
) -> np.ndarray:
    """The rows still high when the discharge of the CAM mode stops (section III-B3, Fig. 7).

    Lines discharge in the order of their scores, lowest first, rows with equal scores together,
    until at most k rows are high. That may be fewer than k, even 0; ``fill`` then adds the rows
    that discharged last, lowest address first, up to exactly k. With k
    rows or fewer in use all of them are selected.

    ``scores`` is [..., rows], ``used`` a mask of that shape, every row when not given. Returns a
    mask [..., rows]. Raises ``ValueError`` for k below 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    used = np.ones(scores.shape, bool) if used is None else np.broadcast_to(used, scores.shape)
    rows = scores.shape[-1]
    if k >= rows:
        return used.copy()
    # Integers and floats alike: an unused row is below every score that a used one can have.
    ranked = np.where(used, scores.astype(np.result_type(scores, np.float32)), -np.inf)
    # A row remains high if at most k rows have its score or more, so the (k + 1)th largest score is
    # the highest that discharges.
    discharged = np.partition(ranked, rows - k - 1, axis=-1)[..., rows - k - 1, None]
    high = ranked > discharged
    if fill:
        last = (ranked == discharged) & used
        missing = k - np.count_nonzero(high, axis=-1)[..., None]
        high |= last & (np.cumsum(last, axis=-1) <= missing)
    return high


def charge_share(accumulation: np.ndarray, scores: np.ndarray, share: int) -> np.ndarray:
    """Charge sharing of each line with its accumulation capacitor (section III-B4, Fig. 8).

    acc <- (C_acc acc + C_sl score) / (C_acc + C_sl), with C_sl a part 2^-share of both: the
    accumulation moves by 2^-share of its distance to the score.
    """
    return accumulation + (scores - accumulation) * accumulation.dtype.type(2.0**-share)


def eviction_candidate(accumulation: np.ndarray, used: np.ndarray | None = None) -> np.ndarray:
    """The row of the smallest accumulation, the first to reach V_S in the second discharge.

    Ties go to the lowest address. ``accumulation`` is [..., rows], ``used`` a mask of that shape;
    returns row addresses [...].
    """
    if used is not None:
        accumulation = np.where(used, accumulation, np.inf)
    return np.argmin(accumulation, axis=-1)


def static_pruning(accumulation: np.ndarray, heavy: int) -> np.ndarray:
    """The ``heavy`` tokens to keep after the prompt (section III-A1): positions, rising.

    ``accumulation`` [..., tokens] holds their accumulated attention scores; the lowest are dropped,
    of equal ones the oldest first. Returns [..., min(heavy, tokens)].
    """
    drop = max(accumulation.shape[-1] - heavy, 0)
    order = np.argsort(accumulation, axis=-1, kind="stable")
    return np.sort(order[..., drop:], axis=-1)
