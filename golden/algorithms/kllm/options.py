"""Which options of :class:`golden.algorithms.kllm.model.QuantizedLlama` go together."""

from golden.algorithms.kllm.quantize import outlier_count

CHOICES = {
    "fit": ("fitted", "paper"),
    "thresholds": ("dynamic", "static"),
    "norms": ("float", "fused"),
    "attention": ("float", "quantised"),
}


def check_options(
    weight_bits: int | None,
    activation_bits: int | None,
    fit: str,
    outlier_share: float,
    outliers: int | None,
    thresholds: str,
    fisher: bool,
    norms: str,
    rotate: bool,
    attention: str,
    head: bool,
    tuned: bool,
    rows: int | None,
    bit_exact: bool,
) -> None:
    """Raise ``ValueError``, with a sentence, for a value or a pair of values that no model has."""
    chosen = {"fit": fit, "thresholds": thresholds, "norms": norms, "attention": attention}
    for name, value in chosen.items():
        if value not in CHOICES[name]:
            first, second = CHOICES[name]
            raise ValueError(f"{name} must be {first!r} or {second!r}, not {value!r}")
    for name, bits in (("weight_bits", weight_bits), ("activation_bits", activation_bits)):
        if bits is not None and not 1 <= bits <= 8:
            raise ValueError(f"{name} must be between 1 and 8, not {bits}")
    outlier_count(1, outlier_share)  # raises ValueError for a share out of range
    if outliers is not None and outliers < 0:
        raise ValueError(f"outliers must be at least 0, not {outliers}")
    if rows is not None and rows < 1:
        raise ValueError(f"rows must be at least 1, not {rows}")
    if rows is not None and not bit_exact:
        raise ValueError("rows: bit_exact must be true, since floats have no parts")
    if bit_exact and thresholds != "dynamic":
        raise ValueError("bit_exact: thresholds must be 'dynamic'")
    if bit_exact and None in (weight_bits, activation_bits):
        raise ValueError("bit_exact: weights and activations must both be quantised")
    if norms == "fused" and (fisher or thresholds == "static"):
        raise ValueError("norms=fused: thresholds must be 'dynamic' and fisher false")
    if rotate and norms != "fused":
        raise ValueError("rotate: norms must be 'fused', since a gain does not rotate")
    if head and weight_bits is None:
        raise ValueError("head: weights must be quantised")
    if tuned and weight_bits is None:
        raise ValueError("tuned: weights must be quantised")
