"""Random rows of q, k and v for tests of attention."""

import numpy as np


def random_qkv(heads, kv_heads, tokens, d, seed=0, dtype=np.float64, sharpness=1.0):
    """Normal numbers [heads or kv heads, tokens, d]; `sharpness` scales q, which makes attention
    uneven."""
    rng = np.random.default_rng(seed)
    shapes = ((n, tokens, d) for n in (heads, kv_heads, kv_heads))
    q, k, v = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    return sharpness * q, k, v
