"""Quantised models for the accelerator, their weights kept in the project's cache folder."""

from collections.abc import Callable
from typing import Any

from golden.algorithms.kllm.calibration import calibration_samples, tuning_samples
from golden.algorithms.kllm.model import QuantizedLlama
from golden.lm.model import Llama
from golden.lm.tokenizer import Tokenizer


def quantized_model(
    model: Llama,
    tokenizer: Tokenizer,
    *,
    weight_bits: int,
    activation_bits: int,
    rows: int | None = None,
    outliers: int | None = None,
    tuned: bool = False,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> QuantizedLlama:
    """The bit-exact quantised model; its weights are fitted once, then read in a second.

    rows
        Most values of a vector in a product, by default all; longer ones are in parts.
    outliers
        At each end of every vector, by default a share of its values, 1 % at both ends.
    tuned
        Whether scales are tuned with all of the model quantised, which takes as long again.
    progress
        Called with a line of text for people, such as which layer is quantised.
    options
        Others of :class:`golden.algorithms.kllm.model.QuantizedLlama`, such as ``norms="fused"``.
    :raises ValueError: for bits that no index has.
    """
    return QuantizedLlama(
        model,
        calibration_samples(tokenizer),
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        rows=rows,
        outliers=outliers,
        tuned=tuned,
        tuning=tuning_samples(tokenizer) if tuned else (),
        bit_exact=True,
        cached=True,
        progress=lambda text: progress(f"quantising, once: {text} …"),
        **options,
    )
