"""Exercise 3 of docs/courses/topick.md: margins that forget the query's negative elements.

Run from the folder of the checkout: .venv/bin/python -m examples.course.topick.wrong_margin
"""

import dataclasses

import numpy as np

from examples.course.topick.head import Head
from golden.algorithms.attention import softmax

HEADS = 9


def main() -> None:
    outside, largest = 0, 0.0
    for number in range(HEADS):
        head = Head.of(number)
        known = head.partial[0]
        outside += np.count_nonzero((head.exact < known) | (head.exact > known + head.most[0]))
        order = np.argsort(-head.exact)
        found = dataclasses.replace(head, least=head.most).decide(order)
        p = softmax(head.exact[order] * head.unit)
        largest = max(largest, float(p[~found.kept].max(initial=0)))
    print(f"{outside} of {HEADS * 512} scores outside of the bounds after the first chunk")
    print(f"largest probability of a pruned token: {largest:.4f}")
    # A term that is too large makes the sum too large, so tokens are compared with a denominator
    # that is no lower bound: the guarantee is gone, though every output looks plausible.


if __name__ == "__main__":
    main()
