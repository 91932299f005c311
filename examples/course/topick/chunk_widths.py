"""Exercise 1 of docs/courses/topick.md: bytes of K and V by the width of a chunk.

Run from the folder of the checkout: .venv/bin/python -m examples.course.topick.chunk_widths
"""

import numpy as np

from golden import trace
from golden.algorithms.topick import TokenPickerAttention

D, BURST = 64, 32


def main() -> None:
    shipped = trace.load(trace.shipped()[0])
    q, k, v = (x[1].astype(np.float32) for x in (shipped.q, shipped.k, shipped.v))
    for bits in (2, 3, 4, 6):
        policy = TokenPickerAttention(1e-3, chunk_bits=bits, scale=shipped.scale)
        policy.sequence(q, k, v)
        size = D * bits // 8
        bursts = f"{size} bytes a chunk, {size / BURST:.2f} bursts"
        print(f"{bits} bits: K {policy.k_reduction:.2f}, V {policy.v_reduction:.2f}; {bursts}")
    # Narrow chunks stop reading a key sooner. But a chunk of 2 bits is half of a burst, so the
    # memory moves the whole burst for it, and what was saved is moved after all.


if __name__ == "__main__":
    main()
