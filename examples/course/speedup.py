"""Exercise 2 of docs/courses/veda.md: cycles of a layer's steps with all rows, and with 512.

Run from the folder of the checkout: .venv/bin/python -m examples.course.speedup
"""

from hw.veda.core_work import StepWork
from hw.veda.veda_core_parameters import VedaCoreParameters

HEADS, KEPT, FIRST, LAST = 32, 512, 512, 4095
CORE = VedaCoreParameters.preset("paper")


def cycles(rows: int, votes: bool) -> int:
    """Of a step alone, from its command to its last result; an eviction follows the votes."""
    return CORE.cycles([StepWork(rows, HEADS, 1, votes, evictions=int(votes))])


def main() -> None:
    dense = sum(cycles(step + 1, votes=False) for step in range(FIRST, LAST + 1))
    steps = LAST + 1 - FIRST
    kept = steps * cycles(KEPT + 1, votes=True)
    print(f"{dense} cycles with all rows, {kept} with {KEPT}: {dense / kept:.1f} times less")
    with_votes, without = cycles(KEPT + 1, votes=True), cycles(KEPT + 1, votes=False)
    print(f"a step of {KEPT + 1} rows takes {without} cycles, {with_votes} with votes")
    print(
        f"so votes are {with_votes / without - 1:.0%} of a step alone, and hidden beside another's"
    )


if __name__ == "__main__":
    main()
