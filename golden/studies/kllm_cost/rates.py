"""Rates of the core and of an A100 in tokens a second."""

import dataclasses
from math import inf
from statistics import geometric_mean

from golden.algorithms.kllm.cost import MODELS, Core, Shape, Token, a100_bytes
from golden.algorithms.kllm.cost.decode import mean_token
from golden.algorithms.kllm.cost.published import (
    A100_BANDWIDTH,
    A100_BYTES,
    BATCH,
    STACKS,
    TOKENS,
)

K = 4096
"""Number of rows and of columns of the paper's product (Figs. 1 and 10b)."""

MEMORIES = {"ideal": inf, "2.04 TB/s": A100_BANDWIDTH} | STACKS
"""Bytes a second. An ideal memory always keeps up."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the page is of.

    model
        For what is of one model, a key of `MODELS`.
    tokens
        Length of the output.
    """

    core: Core = dataclasses.field(default_factory=Core)
    model: str = "llama-2-7b"
    tokens: int = TOKENS

    @property
    def shape(self) -> Shape:
        """Shape of the model."""
        return MODELS[self.model]

    def at(self, **changes) -> "Setting":
        """With changes of the core."""
        return dataclasses.replace(self, core=dataclasses.replace(self.core, **changes))

    def token(self, batch: int = 1) -> Token:
        """Mean step of the model."""
        return mean_token(self.shape, self.core, self.tokens, batch)

    def rate(self, batch: int = 1) -> float:
        """Tokens a second of all sequences."""
        return batch * self.core.clock / self.token(batch).cycles

    def bound(self, batch: int = 1) -> float:
        """Tokens a second that an A100 cannot exceed: all its bandwidth, FP16, all bytes once."""
        read = a100_bytes(self.shape, self.context, batch)
        return batch * A100_BANDWIDTH / read

    @property
    def context(self) -> float:
        """Mean length of the context."""
        return (self.tokens + 1) / 2

    @property
    def fits(self) -> bool:
        """Whether an A100 holds the model in FP16."""
        return a100_bytes(self.shape, self.tokens) < A100_BYTES


def mean_gain(setting: Setting) -> float:
    """Gain of the core over an A100's bound: geometric mean over the models that an A100 holds."""
    models = [dataclasses.replace(setting, model=name) for name in MODELS]
    return geometric_mean([at.rate() / at.bound() for at in models if at.fits])


def growth(setting: Setting) -> float:
    """Rate of the batch of Fig. 9 over the rate of one sequence."""
    return setting.rate(BATCH) / setting.rate()


def bandwidth_of_growth(setting: Setting, wanted: float) -> float:
    """Bandwidth at which that batch gains `wanted` times: more bandwidth, less gain.

    Between 10 GB/s and 10 TB/s, to a percent.
    """
    low, high = 1e10, 1e13
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        if growth(setting.at(bandwidth=middle)) > wanted:
            low = middle
        else:
            high = middle
    return low


def percent(value: float) -> str:
    """A share in percent, with two digits or three."""
    return f"{100 * value:.1f} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"
