"""Exercise 2 of docs/courses/topick.md: tokens from old to new, in place of the newest first.

Run from the folder of the checkout: .venv/bin/python -m examples.course.topick.from_old_to_new
"""

import numpy as np

from examples.course.topick.head import Head
from golden.algorithms.topick import request_order


def main() -> None:
    head = Head.of(0)
    orders = {
        "newest first": request_order(np.array([511]), 512)[:, 0],
        "from old to new": np.arange(512),
        "the largest score last": np.argsort(head.exact),
    }
    for name, order in orders.items():
        found = head.decide(order)
        print(f"{name}: {found.read.sum()} of 1536 chunks read, {found.kept.sum()} values")
    # The first token is an attention sink with much of the sum, so from old to new is about as
    # good. Where large terms come last, all earlier tokens were compared with too small a sum.


if __name__ == "__main__":
    main()
