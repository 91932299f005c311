"""The sixth design's algorithm: what ideas of the five papers are worth together."""

from golden.algorithms.tsuru.attention import TsuruAttention
from golden.algorithms.tsuru.constants import (
    constant_samples,
    kept_key_constants,
    key_constants,
    prompt_constants,
)
from golden.algorithms.tsuru.row_codes import KeyConstants

__all__ = [
    "KeyConstants",
    "TsuruAttention",
    "constant_samples",
    "kept_key_constants",
    "key_constants",
    "prompt_constants",
]
