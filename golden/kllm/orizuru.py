"""Orizuru: k largest and k smallest of a vector by two binary trees (KLLM, section IV-C).

The model keeps the paper's data structure: one path bit for each inner node of the max tree and of
the min tree, shared leaves, and one mask of popped leaves for each tree. It counts the comparisons.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class OrizuruResult:
    """Values popped from the two trees.

    max_indices, min_indices
        ``int64[k]`` in the order of popping.
    max_values, min_values
        The values at those indices, in the input's dtype; zeros are positive, NaNs the quiet NaN.
    comparisons
        Comparisons made: 1.5 N - 2 to set both trees up and log2 N for each of the 2k pops, when N
        is a power of two. (The paper rounds the first term to 1.5 N.)
    """

    max_indices: np.ndarray
    min_indices: np.ndarray
    max_values: np.ndarray
    min_values: np.ndarray
    comparisons: int


def orizuru(x: np.ndarray, k: int) -> OrizuruResult:
    """Pop the `k` largest and the `k` smallest of `x`.

    Ties go to the lower index in both trees, -0 equals +0, NaN comes after every number. A value
    leaves both trees when 2k > N. Where N is not a power of two the missing leaves count as popped
    from the start, and comparisons with them are not made.

    x
        ``float[N]``, N at least 1; the hardware's is float16.
    k
        0 to N.
    :raises ValueError: if `x` is not such a vector or `k` not in that range.
    """
    x = np.asarray(x)
    if x.ndim != 1 or len(x) == 0 or x.dtype.kind != "f":
        raise ValueError(f"x must be a vector of floats, not {x.dtype}{list(x.shape)}")
    if not 0 <= k <= len(x):
        raise ValueError(f"k must be between 0 and N = {len(x)}, not {k}")
    largest, smallest = _Tree(x, 1), _Tree(x, -1)
    # The min tree takes its lowest level from the max tree, reversed: no comparisons there.
    comparisons = largest.comparisons + smallest.comparisons - smallest.lowest_level_comparisons
    ends = {}
    for name, tree in (("max", largest), ("min", smallest)):
        before = tree.comparisons
        indices = np.array([tree.pop() for _ in range(k)], np.int64)
        comparisons += tree.comparisons - before
        ends[f"{name}_indices"] = indices
        ends[f"{name}_values"] = _canonical(x[indices])
    return OrizuruResult(comparisons=comparisons, **ends)


def pop_order(x: np.ndarray, keep: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """Pairs that the hardware pops, bit for bit, for many vectors at once.

    The order is as in :func:`orizuru`, but found by sorting, which is fast in NumPy.

    x
        ``float16[vectors, N]``.
    keep
        ``bool[vectors, N]``: values that belong to the vector.
    k
        Pairs, 0 to N.
    :returns: ``max_index``, ``max_value``, ``min_index``, ``min_value`` (``uint16`` FP16 bits),
        ``present`` (0 once a vector's values are used up; index and value are then 0), each
        ``[vectors, k]``, and ``invalid[vectors]``: a kept value is NaN.
    """
    key = order_key(x)
    nan = np.isnan(x)
    present = np.arange(k) < np.count_nonzero(keep, axis=1)[:, None]
    popped = {"present": present, "invalid": (nan & keep).any(axis=1)}
    # Inverting a number's key reverses the order; NaN (1) and a missing value (0) remain last.
    sort_keys = {
        "max": key.astype(np.int32),
        "min": np.where(nan, 1, 0xFFFF - key.astype(np.int32)),
    }
    bits = _canonical(x).view(np.uint16)
    for end, sort_key in sort_keys.items():
        sort_key = np.where(keep, sort_key, 0)
        index = np.argsort(-sort_key, axis=1, kind="stable")[:, :k]
        popped[f"{end}_index"] = np.where(present, index, 0)
        value = np.take_along_axis(bits, index, axis=1)
        popped[f"{end}_value"] = np.where(present, value, np.uint16(0))
    return popped


def order_key(x: np.ndarray) -> np.ndarray:
    """``uint16`` keys that order float16 values: -0 and +0 equal, NaN (1) below every number."""
    bits = np.ascontiguousarray(x, np.float16).view(np.uint16)
    magnitude = bits & 0x7FFF
    negative = (bits >= 0x8000) & (magnitude > 0)
    key = np.where(negative, 0x7FFF - magnitude, 0x8000 + magnitude).astype(np.uint16)
    return np.where(magnitude > 0x7C00, np.uint16(1), key)


class _Tree:
    """Complete binary tree over the leaves; node 1 is the root, node i has children 2i, 2i + 1."""

    def __init__(self, x: np.ndarray, sign: int):
        leaves = 1 << (len(x) - 1).bit_length()
        self._leaves = leaves
        # (class, value) orders as hardware does: number 2, NaN 1, popped or missing 0.
        self._class = np.zeros(leaves, np.int8)
        self._class[: len(x)] = np.where(np.isnan(x), 1, 2)
        self._value = np.zeros(leaves, x.dtype)
        self._value[: len(x)] = sign * np.where(np.isnan(x), 0, x)
        self._path = np.zeros(leaves, bool)
        self._winner = np.concatenate([np.zeros(leaves, np.int64), np.arange(leaves)])
        self._real = np.zeros(2 * leaves, bool)  # nodes above at least one leaf that exists
        self._real[leaves : leaves + len(x)] = True
        self.comparisons = 0
        self.lowest_level_comparisons = 0
        level = leaves // 2
        while level >= 1:
            nodes = np.arange(level, 2 * level)
            made = self._update(nodes)
            if level == leaves // 2:
                self.lowest_level_comparisons = made
            level //= 2

    def _update(self, nodes: np.ndarray) -> int:
        """Compare the children of `nodes` (all of one level); returns comparisons made."""
        left, right = self._winner[2 * nodes], self._winner[2 * nodes + 1]
        higher = self._class[right] > self._class[left]
        level = self._class[right] == self._class[left]
        self._path[nodes] = higher | level & (self._value[right] > self._value[left])
        self._winner[nodes] = np.where(self._path[nodes], right, left)
        both = self._real[2 * nodes] & self._real[2 * nodes + 1]
        self._real[nodes] = self._real[2 * nodes] | self._real[2 * nodes + 1]
        made = int(np.count_nonzero(both))
        self.comparisons += made
        return made

    def pop(self) -> int:
        """Follow the path bits from the root, mask the leaf, replay its path; returns the index."""
        node = 1
        while node < self._leaves:
            node = 2 * node + int(self._path[node])
        index = node - self._leaves
        self._class[index] = 0
        self._value[index] = 0
        node //= 2
        while node >= 1:
            self._update(np.array([node]))
            node //= 2
        return index


def _canonical(values: np.ndarray) -> np.ndarray:
    """Zeros positive, NaNs the one quiet NaN."""
    kind = values.dtype.type
    return np.where(np.isnan(values), kind(np.nan), np.where(values == 0, kind(0), values))
