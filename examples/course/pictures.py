"""The pictures of docs/courses/veda.md that NumPy draws, written to docs/images or another folder:

.venv/bin/python -m examples.course.pictures [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np

from golden import trace
from golden.algorithms.attention import DenseAttention, attention_scores, softmax
from golden.algorithms.baselines.h2o import H2OAttention
from golden.algorithms.baselines.streaming import StreamingAttention
from golden.algorithms.veda.voting import VotingAttention
from golden.evaluation.plots import curves, figure
from golden.studies.study import save

TOKENS, KEPT = 160, 32
CAPACITIES = (16, 24, 32, 48, 64, 96, 128)
shipped = trace.load(trace.shipped()[0])
scale = shipped.scale
q, k, v = (x[1].astype(np.float32) for x in (shipped.q, shipped.k, shipped.v))


def attention_and_cache():
    """What tokens pay attention to, and which of them a cache of KEPT rows has after each step."""
    paid = np.full((TOKENS, TOKENS), np.nan)
    held = np.zeros((TOKENS, TOKENS), bool)
    policy = VotingAttention(KEPT, reserved=16, scale=scale)
    for t in range(TOKENS):
        paid[t, : t + 1] = softmax(attention_scores(q[:, t], k[:, : t + 1], scale)).mean(axis=0)
        policy.step(q[:, t], k[:, t], v[:, t])
        held[t, policy.positions] = True
    drawn = figure(9, 4.6)
    left, right = drawn.subplots(1, 2, sharey=True)
    shown = left.imshow(np.log10(paid), vmin=-4, vmax=0, cmap="viridis", aspect="auto")
    bar = drawn.colorbar(shown, ax=left, ticks=range(-4, 1))
    bar.ax.set_yticklabels(["0.0001", "0.001", "0.01", "0.1", "1"], size=8)
    left.set_title("attention paid, mean of 9 heads", size=10)
    left.set_ylabel("step")
    right.imshow(np.where(held, 1, np.nan), vmin=0, vmax=2, cmap="Blues", aspect="auto")
    right.set_title(f"tokens in a cache of {KEPT} rows", size=10)
    for axes in (left, right):
        axes.set_xlabel("token")
    drawn.suptitle("SmolLM2-135M, layer 15, the first tokens of cranes.txt", size=9)
    return drawn


def error(policy):
    """Of all outputs, relative to dense attention's."""
    dense = DenseAttention(scale).sequence(q, k, v)
    return np.linalg.norm(policy.sequence(q, k, v) - dense) / np.linalg.norm(dense)


def error_and_rows():
    """How wrong outputs are with less and less rows kept."""
    policies = {
        "the newest and the first 4": lambda n: StreamingAttention(n, scale=scale),
        "H2O: largest sums, a layer": lambda n: H2OAttention(n, scale, per="layer"),
        "VEDA: least votes": lambda n: VotingAttention(n, reserved=16, scale=scale),
    }
    errors = {name: [error(of(n)) for n in CAPACITIES] for name, of in policies.items()}
    drawn = curves(CAPACITIES, errors, "rows kept", "relative error of the output", log_x=True)
    drawn.axes[0].set_title("SmolLM2-135M, layer 15, 512 tokens of cranes.txt", size=9)
    drawn.axes[0].set_ylim(0)
    return drawn


def main(folder: Path) -> None:
    for name, draw in (("course_cache", attention_and_cache), ("course_error", error_and_rows)):
        save(draw(), folder / f"{name}.svg", salt=name)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
