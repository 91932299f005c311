"""Exercise 1 of docs/courses/veda.md: evict the row with the least sum of attention so far.

Run from the folder of the checkout: .venv/bin/python -m examples.course.evict_by_sum
"""

import numpy as np

from golden import trace
from golden.algorithms.attention import (
    DecodeAttention,
    DenseAttention,
    attention_scores,
    softmax,
    weighted_sum,
)
from golden.algorithms.veda.voting import VotingAttention

ROWS = 32


class LeastSum(DecodeAttention):
    """Keeps `rows` rows besides the new one; sums are over steps and heads.

    A row that came early has been summed up for longer, so an old row that nobody reads any more
    stays, and a new one leaves before it had its chance. VEDA's votes count against a row, so time
    works against old rows instead.
    """

    def __init__(self, rows: int, scale: float):
        super().__init__()
        self.most, self.scale = rows, scale
        self.positions: list[int] = []
        self.sums = np.zeros(0, np.float32)
        self.tokens = 0

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        if not self.tokens:
            self.k = self.v = np.zeros((len(k), 0, k.shape[1]), np.float32)
        self.k = np.concatenate([self.k, k[:, None]], axis=1)
        self.v = np.concatenate([self.v, v[:, None]], axis=1)
        self.positions.append(self.tokens)
        self.tokens += 1
        p = softmax(attention_scores(q, self.k, self.scale))
        self.sums = np.append(self.sums, np.float32(0)) + p.mean(axis=0)
        if len(self.positions) > self.most:
            leaves = int(self.sums.argmin())
            o = weighted_sum(p, self.v)
            self.k, self.v = (np.delete(x, leaves, axis=1) for x in (self.k, self.v))
            self.sums = np.delete(self.sums, leaves)
            self.evicted.append(self.positions.pop(leaves))
            return o
        return weighted_sum(p, self.v)


def main() -> None:
    shipped = trace.load(trace.shipped()[0])
    q, k, v = (x[1].astype(np.float32) for x in (shipped.q, shipped.k, shipped.v))
    dense = DenseAttention(shipped.scale).sequence(q, k, v)
    sums = LeastSum(ROWS, shipped.scale)
    votes = VotingAttention(ROWS, reserved=16, scale=shipped.scale)
    kept = {}
    for name, policy in (("least sum", sums), ("votes", votes)):
        error = np.linalg.norm(policy.sequence(q, k, v) - dense) / np.linalg.norm(dense)
        kept[name] = {int(position) for position in policy.positions}
        middle = sum(position < 480 for position in kept[name])
        print(f"{name}: error {error:.2f}, {middle} of {ROWS} rows older than 32 tokens")
    print("kept by the sum alone:", *sorted(kept["least sum"] - kept["votes"]))


if __name__ == "__main__":
    main()
