"""The paper's figures of its machine beside each other (LAD, I, IV, V): arithmetic alone."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from golden.studies.lad_claims import cache_numbers
from golden.studies.study import CLOSE, Claim, Table, Verdict
from hw.lad.system_parameters import TILES
from sim.studies.lad.machine import (
    ATTENTION,
    BYTES_PER_S,
    GROUPS,
    HIT,
    LATENCY,
    MACS_PER_S,
    MODELS,
    SPEEDUP,
    Model,
    cases,
)

GPU_BYTES_PER_S, GPU_BYTES = 1555e9, 40e9
"""Bandwidth and memory of the A100 40 GB PCIe (V-A)."""
LAYER = {"weights": 0.29, "K and V at 1024": 0.5, "K and V at 4096": 2.0}
"""GB that a step of a layer of LLaMA2 7B reads, for a batch of 32 (I)."""
BATCH = 32
WHOLE = (1.6, 1.7, 1.7), (2.2, 2.3, 2.3)
"""The whole model beside the GPU in each group, by SRAM (V-C)."""
SHARES = {2048: 0.42, 4096: 0.58}
"""Attention's share of the GPU's latency by positions, LLaMA2 7B's the second (II-A)."""
OUTSIDE = 0.26, 0.1
"""Share of the scores outside their likeliest interval: at most (II-B), and at 4096 positions."""
SRAM = 1.5e6, 2.5e6, 3.5e6
"""Bytes of SRAM of a tile (V-A)."""


def claims() -> list[Claim]:
    """All claims."""
    return [
        layer_claim(),
        peak_claim(),
        loop_claim(),
        reads_claim(),
        floor_claim(),
        whole_claim(),
        linear_claim(),
        ahead_claim(),
        sram_claim(),
        gpu_claim(),
    ]


def layer_claim() -> Claim:
    """Section I, in units of 2^30 bytes."""
    model = MODELS["LLaMA2 7B"]
    square, wide = model.size**2, model.size * model.wide
    ours = {
        "weights": 2 * (4 * square + model.matrices * wide),
        "K and V at 1024": BATCH * 1024 * 2 * model.size * 2,
        "K and V at 4096": BATCH * 4096 * 2 * model.size * 2,
    }
    right = [abs(ours[name] / 2**30 - LAYER[name]) <= 0.005 for name in LAYER]
    two = 2 * (4 * square + 2 * wide) / 2**30
    return Claim(
        "a step of a layer of LLaMA2 7B reads "
        + ", ".join(f"{size} GB of {name}" for name, size in LAYER.items())
        + f", for a batch of {BATCH} (I)",
        ", ".join(f"{size / 2**30:.2f} GB of {name}" for name, size in ours.items()),
        Verdict.COUNTS if all(right) else Verdict.of(*right),
        f"GB of 2^30 bytes. Weights are {LAYER['weights']} GB with two of the feed-forward"
        f" network's three matrices ({two:.2f}); with all of them K and V are"
        f" {ours['K and V at 4096'] / ours['weights']:.1f} times as large at 4096, not 6.9 times",
    )


def peak_claim() -> Claim:
    """Section V-A: the memory's bandwidth."""
    return Claim(
        "five cubes of 16 channels of 19.2 GB/s are 1.5 TB/s, which matches the A100's 1555 GB/s"
        " (V-A)",
        f"{BYTES_PER_S / 1e9:.0f} GB/s, {BYTES_PER_S / GPU_BYTES_PER_S - 1:+.1%}",
        Verdict.HOLDS
        if round(BYTES_PER_S / 1e12, 1) == 1.5 and abs(BYTES_PER_S / GPU_BYTES_PER_S - 1) <= CLOSE
        else Verdict.CONTRADICTS,
        f"of the rates that other rows use; the multipliers are {MACS_PER_S / 1e12:.2f} T products"
        " a second, so that a batch of"
        f" {2 * MACS_PER_S / BYTES_PER_S:.0f} makes linear layers bound by computing",
    )


def loop_cycles(active: int, updated: int, d: int = 128) -> int:
    """Iterations of Algorithm 2's loops, each a cycle."""
    of_three = math.ceil(updated / 3)
    return math.ceil(d / 3) + 1 + math.ceil(active / 3) + 1 + (d + 3) * of_three


def loop_claim(active: int = 256, d: int = 128) -> Claim:
    """Equation 7's last term beside Algorithm 2."""
    over = {
        updated: loop_cycles(active, updated, d) / ((d + active + updated * d + 3 * updated) / 3)
        for updated in range(1, 7)
    }
    return Claim(
        "AC takes (d + |J| + |U| d + 3 |U|) / 3 cycles (equation 7)",
        f"Algorithm 2's loops at d = {d}, |J| = {active}: "
        + ", ".join(f"{ratio:.2f} times that with |U| = {u}" for u, ratio in over.items()),
        Verdict.HOLDS
        if all(abs(ratio - 1) <= CLOSE for ratio in over.values())
        else Verdict.CONTRADICTS,
        "each iteration a cycle, as the paper has it. AC.5 runs d times over ⌈|U| / 3⌉ groups of"
        " changed positions, where the equation has d |U| / 3; a position changes in every step"
        " (III-E)",
    )


def own_share(n: int, d: int, outside: float, hit: float = HIT) -> float:
    """Numbers moved of dense attention's 2 n d, by the paper's counts and without centres.

    Caches and G are read and written; of active K and V what was not loaded before is read.
    """
    moved = 2 * cache_numbers(d) + 2 * 4 * n + (1 - hit) * outside * n * 2 * d
    return moved / (2 * n * d)


def reads_claim() -> Claim:
    """Fig. 7 (a) from the paper's own counts."""
    told, fits = [], []
    for group, speeds in zip(GROUPS, SPEEDUP, strict=True):
        gains = [
            math.exp(-np.mean([math.log(own_share(n, m.d, share)) for m, n in cases(group)]))
            for share in OUTSIDE
        ]
        told.append(f"{gains[0]:.1f} to {gains[1]:.1f} times at {group[0]} to {group[-1]}")
        fits.append(gains[0] <= (1 + CLOSE) * speeds[1])
    first, second = (speeds[1] for speeds in SPEEDUP)
    return Claim(
        f"attention up to {first} and {second} times as fast follows from fewer reads (V-C)",
        "by the paper's counts, of dense attention at full bandwidth: " + ", ".join(told),
        Verdict.ASSUMED if all(fits) else Verdict.CONTRADICTS,
        f"with {OUTSIDE[0]:.0%} to {OUTSIDE[1]:.0%} of the positions active, of which {HIT:.0%} are"
        " loaded before; caches and G read and written. It leaves out the keys of centres, so that"
        " they must be very few; here rotary positions make nearly every key one",
    )


def ideal_use(group: Sequence[int], theirs: float) -> float:
    """Share of the bandwidth at which LAD, by its own counts, has that share of the latency.

    The ideal accelerator reads no faster; in steps of 1 %; 0 if no share does.
    """
    for percent in range(100, 0, -1):
        ratios = []
        for model, n in cases(group):
            products, attention = model.ideal(n)
            attention *= 100 / percent
            ours = products + attention * own_share(n, model.d, min(OUTSIDE))
            ratios.append(ours / (products + attention))
        if np.mean(ratios) <= theirs:
            return percent / 100
    return 0.0


def floor_claim() -> Claim:
    """Fig. 8, right: products alone, of the ideal accelerator's latency."""
    model = [1 - _mean_share(group) for group in GROUPS]
    least = [min(theirs) for theirs in LATENCY]
    return Claim(
        f"{least[0]} and {least[1]} of the ideal accelerator's latency at least, which has the same"
        " multipliers and bandwidth (Fig. 8, right)",
        f"with attention in no time {model[0]:.2f} and {model[1]:.2f} remain",
        Verdict.HOLDS
        if all(floor <= theirs + 0.005 for floor, theirs in zip(model, least, strict=True))
        else Verdict.CONTRADICTS,
        "of the ideal accelerator's products at all multipliers and attention at full bandwidth,"
        " mean over models and lengths. With the paper's own counts of LAD's reads, the cubes would"
        f" give {ideal_use(GROUPS[0], least[0]):.0%} of their bandwidth in the one group and"
        f" {ideal_use(GROUPS[1], least[1]):.0%} in the other; what Ramulator gave is not stated",
    )


def _mean_share(group: Sequence[int]) -> float:
    """Attention's share of the ideal accelerator's latency."""
    pairs = [model.ideal(n) for model, n in cases(group)]
    return float(np.mean([attention / (attention + products) for products, attention in pairs]))


def linear_speed(whole: float, attention: float, share: float) -> float:
    """How much faster linear layers are, if attention had that share of the GPU's time."""
    return (1 - share) / (1 / whole - share / attention)


def whole_claim() -> Claim:
    """Fig. 7 (b) from Fig. 7 (a) and Fig. 1."""
    ends = sorted(SHARES)
    shares = SHARES[ends[0]], float(np.mean(np.interp(GROUPS[1], ends, [SHARES[n] for n in ends])))
    needed = [
        linear_speed(whole[-1], attention[-1], share)
        for whole, attention, share in zip(WHOLE, ATTENTION, shares, strict=True)
    ]
    return Claim(
        f"the whole model {WHOLE[0][-1]} and {WHOLE[1][-1]} times as fast as on the GPU, linear"
        " layers not notably faster (V-C)",
        f"linear layers {needed[0]:.2f} times as fast or more, and {needed[1]:.2f} times",
        Verdict.HOLDS if max(needed) <= 1 + CLOSE else Verdict.CONTRADICTS,
        f"attention {ATTENTION[0][-1]} and {ATTENTION[1][-1]} times as fast has {shares[0]:.0%} of"
        f" the GPU's time at most and {shares[1]:.0%}, between the text's {SHARES[2048]:.0%} at"
        f" 2048 and {SHARES[4096]:.0%} at 4096 positions. Not notably is by a tenth at most; other"
        " batches than Fig. 1's may have other shares",
    )


def held(model: Model, n: int) -> int:
    """Samples that the GPU's memory holds beside the weights."""
    sample = 2 * 2 * n * model.layers * model.size
    return int((GPU_BYTES - 2 * model.products) // sample)


def linear_claim() -> Claim:
    """Section V-C: batches at which the GPU, bound by its bandwidth, is no faster."""
    batch = 2 * MACS_PER_S / GPU_BYTES_PER_S
    room = {(name, n): held(model, n) for name, model, n in named_cases()}
    most = max(room.values())
    return Claim(
        "linear layers about as fast as on the GPU, each at its best batch (V-C)",
        f"the multipliers' rate is the GPU's with a batch of {batch:.1f}, by its bandwidth alone",
        Verdict.HOLDS if most <= batch else Verdict.ASSUMED,
        f"its 40 GB hold {min(room.values())} to {most} samples, so that it must leave"
        f" up to {1 - batch / most:.0%} of that rate unused",
    )


def named_cases() -> list[tuple[str, Model, int]]:
    """The test cases of both groups with their model's name."""
    return [
        (name, model, n)
        for name, model in MODELS.items()
        for group in GROUPS
        for n in group
        if n <= model.longest
    ]


def loaded(model: Model, n: int, batch: float, outside: float) -> float:
    """Share of the active positions' K and V that a QKV period has bandwidth for, 1 at most.

    The period takes the products of one head's three matrices for a batch, and reads the matrices.
    """
    numbers = 3 * model.d * model.size
    free = batch * numbers / MACS_PER_S * BYTES_PER_S - 2 * numbers
    return min(max(free, 0) / (batch * outside * n * 4 * model.d), 1)


def active_share(n: int) -> float:
    """Share of active positions by the text, at most but for the longest context."""
    return OUTSIDE[n >= 4096]


def ahead_claim() -> Claim:
    """Section IV-D: whether a QKV period is long enough."""
    shares = {(x, n): loaded(m, n, held(m, n), active_share(n)) for x, m, n in named_cases()}
    endless = min(loaded(m, n, 1e6, active_share(n)) for _, m, n in named_cases())
    short = [case for case, share in shares.items() if share < HIT]
    name, n = min(shares, key=lambda case: shares[case])
    return Claim(
        f"a QKV period is long enough to load {HIT:.0%} of the active rows (IV-D)",
        f"{len(shares) - len(short)} of {len(shares)} test cases, with batches that 40 GB hold;"
        f" least {shares[name, n]:.0%}, of {name} at {n}",
        Verdict.HOLDS if not short else Verdict.ASSUMED if endless >= HIT else Verdict.CONTRADICTS,
        f"active are {OUTSIDE[0]:.0%} (II-B), {OUTSIDE[1]:.0%} at 4096. The memory's size is not"
        " stated, 40 GB are the GPU's. A batch of less than"
        f" {2 * MACS_PER_S / BYTES_PER_S:.0f} leaves no bandwidth beside the weights; one without"
        f" end leaves it for {endless:.0%} of the rows at least",
    )


def tile_bytes(model: Model, n: int, outside: float, hit: float = HIT) -> float:
    """SRAM of a tile for rows loaded ahead for its part of a batch, and for two heads at work.

    Of these two, one is read and one computed; each has its active K and V, caches, G and scores.
    """
    rows = outside * n * 4 * model.d
    scalars = 2 * cache_numbers(model.d) + 8 * n + 2 * n
    return hit * rows * held(model, n) / TILES + 2 * (rows + scalars)


def sram_claim() -> Claim:
    """Section V-C: what a larger SRAM does in each group."""
    ends = [
        [max(tile_bytes(m, n, share) for m, n in cases(group)) for share in reversed(OUTSIDE)]
        for group in GROUPS
    ]
    few, many = (np.array(column) for column in zip(*ends, strict=True))
    grows = [few[1] > SRAM[0], many[1] > SRAM[0] and many[1] > many[0]]
    return Claim(
        f"{SRAM[0] / 1e6:g} MB of SRAM limit loading ahead at 2560 to 4096 positions, more than at"
        " 512 to 2048: attention is 7.1 times as fast, with 3.5 MB 10.7 times (V-C)",
        "; ".join(
            f"{a / 1e6:.1f} MB with {OUTSIDE[1]:.0%} active, {b / 1e6:.1f} MB with"
            f" {OUTSIDE[0]:.0%}, at {group[0]} to {group[-1]}"
            for group, (a, b) in zip(GROUPS, ends, strict=True)
        ),
        Verdict.HOLDS if all(grows) else Verdict.ASSUMED if any(grows) else Verdict.CONTRADICTS,
        "a tile's part of the rows loaded for the batch that 40 GB hold, and two heads at work, the"
        " most of the models. It needs a quarter of the positions active in long contexts, too, or"
        " a larger memory: such batches are the smaller the longer the context, so that rows"
        " loaded ahead take as much room at any length",
    )


def gpu_claim() -> Claim:
    """What needs the paper's GPU."""
    return Claim(
        "attention takes 42 % and 58 % of an A100's latency (Fig. 1), LAD is faster than QServe,"
        " H2O and LAD's own kernels on it (Fig. 7), and the whole model 10 to 14.4 times as energy"
        " efficient (Fig. 9)",
        "no such GPU",
        Verdict.UNKNOWN,
        "these are times and powers of programs on a GPU that the paper measured, at batches that"
        " it does not state",
    )


def batches() -> Table:
    """Batches, and what a QKV period loads."""

    def cell(give: Callable[[Model, int], str]) -> Callable[[tuple[str, Model, int]], str]:
        return lambda case: give(case[1], case[2])

    return Table.of(
        "Batches that 40 GB hold beside the weights, and what a QKV period then has bandwidth for"
        " of the active positions' rows; a tile's SRAM for them and two heads at work;"
        f" {OUTSIDE[0]:.0%} of the positions active, {OUTSIDE[1]:.0%} at 4096",
        [case for case in named_cases() if case[2] in (512, 2048, 4096)],
        ("model", "{0[0]}"),
        ("positions", "{0[2]}"),
        ("batch", cell(lambda m, n: str(held(m, n)))),
        ("loaded ahead", cell(lambda m, n: f"{loaded(m, n, held(m, n), active_share(n)):.0%}")),
        ("SRAM, MB", cell(lambda m, n: f"{tile_bytes(m, n, active_share(n)) / 1e6:.2f}")),
    )
