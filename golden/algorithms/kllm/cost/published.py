"""What the paper's text and Table I state, and measurements of others."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Part:
    """A row of Table I: area in mm2 and power in W of all `units` of a lane or of the chip.

    kilobytes
        Size of a buffer, else 0.
    """

    name: str
    area: float
    power: float
    units: int = 1
    kilobytes: int = 0
    in_lane: bool = False

    @property
    def number(self) -> int:
        """Number of times that the chip has it."""
        return LANES if self.in_lane else 1

    @property
    def unit_area(self) -> float:
        """Area of a unit in µm²."""
        return 1e6 * self.area / self.units

    @property
    def bit_area(self) -> float:
        """Area of a bit of a buffer in µm²."""
        return self.unit_area / (8192 * self.kilobytes)

    @property
    def power_density(self) -> float:
        """Power in W by area in mm²."""
        return self.power / self.area

    def joules(self, clock: float) -> float:
        """Energy of a unit in a cycle of `clock` in Hz."""
        return self.power / self.units / clock


LANES = 16
PARTS = (
    Part("Concat Unit", 8.68e-2, 8.36e-2, units=4096, in_lane=True),
    Part("Wgt Buffer", 6.75e-2, 1.69e-2, kilobytes=2, in_lane=True),
    Part("IdxCounter", 2.71e-1, 6.14e-2, units=32, in_lane=True),
    Part("MAC", 9.05e-2, 1.96e-1, units=32, in_lane=True),
    Part("Out Buffer", 4.61, 5.70e-1, kilobytes=136),
    Part("Act Idx Buffer", 2.16, 5.40e-1, kilobytes=32),
    Part("Act Codebook Buffer", 8.44e-3, 2.11e-3, kilobytes=2),
    Part("Clustering Unit", 2.11e-1, 7.10e-1),
    Part("Orizuru", 7.39e-1, 2.73e-1, units=273),
    Part("Functional Unit", 8.89e-1, 5.63e-1),
)
"""Table I: 28 nm, 500 MHz."""
NAMED = {part.name: part for part in PARTS}
LANE_AREA, LANE_POWER = 8.25, 5.73
"""Area and power of all lanes, as Table I sums them."""
TOTAL_AREA, TOTAL_POWER = 16.87, 8.96

BASELINES = ("A100", "QuaRot", "SpAtten", "Olive", "BitMoD")
SPEED_A4 = dict(zip(BASELINES, (8.66, 4.76, 2.12, 1.37, 1.45), strict=True))
SPEED_A3 = dict(zip(BASELINES, (9.67, 5.31, 2.37, 1.53, 1.62), strict=True))
"""Section V-C: KLLM over each, in single-batch decoding, mean over models (Fig. 8a)."""
ENERGY_A4 = (214.8, 107.2, 47.6, 2.79, 1.53, 1.26, 1.29)
ENERGY_A3 = (229.5, 114.58, 50.89, 2.98, 1.63, 1.34, 1.38)
"""Section V-C, seven figures for the five baselines it names (Fig. 8b)."""
ENERGY_A100, ENERGY_SPATTEN = 214.76, 2.79
"""Abstract."""
BATCH, SPEED_BATCH_A4, SPEED_BATCH_A3 = 8, 1.78, 2.04
"""Over the A100 at a batch of eight, LLaMA-2-7B (Fig. 9)."""
KERNEL_SPEED = 7.93
"""Over the A100 in a K-Means product of 4096 x 4096 (Fig. 1b)."""
TOKENS = 2048
"""Length of the output (section V-A)."""
LOST = (0.06, 0.08)
"""Throughput that KLLM loses beside KLLM-S at 1 % of outliers (Fig. 10a)."""
SHARES = {
    "concatenation": 33.46,
    "distribution": 27.65,
    "reduction": 21.02,
    "Orizuru": 6.59,
    "dequantisation": 4.32,
}
"""Percent of the on-chip energy of a W4A3 product of 4096 x 4096 (Fig. 10b)."""
HBM_SAVED, SAVED_B, SAVED_C, SAVED_D = 0.75, 2.49, 20.98, 1.45
"""Fig. 12: of the HBM's energy; of all, of each step over the one before."""
PERPLEXITY_STEPS = (6e5, 8.03, 7.91, 7.49)
"""Fig. 11, W4A3, LLaMA-2-7B: RTN, K-Means, sample weights, dynamic outliers."""
PERPLEXITY_TABLE = (6e5, 7.91, 7.49)
"""Table II: RTN, KLLM-S, KLLM."""

A100_BANDWIDTH = 2.039e12
"""Bytes a second, A100-80GB SXM, NVIDIA's data sheet."""
A100_BYTES = 80e9
A100_POWER = 400.0
"""W, maximum of the same."""
A100_TUNED, A100_EAGER, A100_FOUR_BITS = 104.9, 25.5, 196.8
"""Tokens a second of LLaMA-2-7B on an A100-80GB limited to 330 W, single batch: gpt-fast in 16
bits, the plain PyTorch that it starts from, gpt-fast with weights of 4 bits (its README, and
pytorch.org/blog/accelerating-generative-ai-2). The contexts are short."""
HBM_JOULES_A_BIT = 3.9e-12
"""Assumed, of HBM2: M. O'Connor et al., Fine-Grained DRAM, MICRO-50, 2017."""
STACKS = {"460 GB/s": 460e9, "256 GB/s": 256e9}
"""Bytes a second of one stack of HBM2e and of HBM2."""
MAC_JOULES = 1.5e-12
"""Assumed, an FP16 multiplication and addition at 45 nm: M. Horowitz, Computing's energy problem,
ISSCC 2014 (1.1 and 0.4 pJ)."""
CELL = 0.127
"""um2, of a bit in a dense 28 nm SRAM; assumed."""
