"""Speed: Figs. 1b, 8a, 9 and 10a."""

import dataclasses

from golden.algorithms.kllm.cost import a100_bytes
from golden.algorithms.kllm.cost import published as paper
from golden.algorithms.kllm.cost.cycles import Core, Product, column_cycles, cycles
from golden.algorithms.kllm.cost.decode import VECTORS, search_cycles
from golden.algorithms.kllm.quantize import outlier_count
from golden.studies.kllm_cost.rates import (
    K,
    Setting,
    bandwidth_of_growth,
    growth,
    mean_gain,
    percent,
)
from golden.studies.study import CLOSE, Claim, Verdict, close


def kernel_claims(setting: Setting) -> list[Claim]:
    taken = cycles(setting.at(activation_bits=4).core, Product(K, K)) / setting.core.clock
    read = 2 * K * K / paper.A100_BANDWIDTH
    needed = paper.KERNEL_SPEED * taken
    return [
        Claim(
            f"{paper.KERNEL_SPEED}× faster than an A100 in a K-Means product of {K} × {K}, W4A4",
            f"{taken * 1e6:.2f} µs; the A100 would take {needed * 1e6:.1f} µs",
            Verdict.ASSUMED if needed > read else Verdict.CONTRADICTS,
            f"an A100 reads the same matrix in FP16 in {read * 1e6:.1f} µs, so over a plain FP16"
            f" product at full bandwidth the gain is at most {read / taken:.1f}×. The time of its"
            " K-Means kernel is in the picture only",
        )
    ]


def speed_claims(setting: Setting) -> list[Claim]:
    four, three = setting.at(activation_bits=4), setting.at(activation_bits=3)
    bound, name = setting.bound(), setting.shape.name
    found = []
    for at, bits, speeds in ((four, 4, paper.SPEED_A4), (three, 3, paper.SPEED_A3)):
        claimed = speeds["A100"]
        used = at.rate() / claimed / bound
        found.append(
            Claim(
                f"A{bits}: {claimed}× faster than the A100",
                f"{at.rate() / bound:.2f}× over an A100 at its bandwidth ({at.rate():.0f} and"
                f" {bound:.0f} tokens/s, {name})",
                _by_use(setting, used, at.rate(), claimed),
                f"{claimed}× needs an A100 that uses {percent(used)} of its bandwidth,"
                f" {at.rate() / claimed:.0f} tokens/s. Measured by others on LLaMA-2-7B:"
                f" {paper.A100_EAGER} in plain PyTorch, {paper.A100_TUNED} compiled, so that the"
                f" core's gain is {at.rate() / paper.A100_EAGER:.1f}× to"
                f" {at.rate() / paper.A100_TUNED:.1f}×. The text calls the A100 memory-bound. Mean"
                f" over the models that fit: {mean_gain(at):.2f}×",
            )
        )
    ratios = [paper.SPEED_A3[name] / paper.SPEED_A4[name] for name in paper.BASELINES]
    gain = three.rate() / four.rate()
    token = four.token()
    found.append(
        Claim(
            f"A3 is {min(ratios):.3f} to {max(ratios):.3f} times faster than A4",
            f"{gain:.3f} times",
            Verdict.HOLDS if close(gain, sum(ratios) / len(ratios)) else Verdict.NOT,
            "weights have 4 bits in both and are counted in as many cycles; only the reduction"
            " halves. It bounds the last tile of a long column and the queries' products with keys,"
            f" {percent(token.keys / token.cycles)} of A4's cycles, as a column of keys is one"
            " word. The smaller the share of attention, the less A3 gains",
        )
    )
    quantised = setting.bound() * 4
    over = four.rate() / paper.SPEED_A4["QuaRot"]
    found.append(
        Claim(
            f"A4: {paper.SPEED_A4['QuaRot']}× faster than QuaRot on the A100",
            f"QuaRot at {over:.0f} tokens/s, {percent(over / quantised)} of the bandwidth",
            Verdict.UNKNOWN,
            "the paper states no rate of it. Weights of 4 bits on an A100 reach"
            f" {paper.A100_FOUR_BITS} tokens/s with activations in 16 bits (gpt-fast), of which"
            f" {four.rate():.0f} are {four.rate() / paper.A100_FOUR_BITS:.1f}×",
        )
    )
    for other, size in (("SpAtten", 8), ("Olive", 4), ("BitMoD", 4)):
        speed = paper.SPEED_A4[other]
        rate = four.rate() / speed
        # Half of FP16 or a quarter of it, weights and cache.
        read = a100_bytes(setting.shape, setting.context) * size / 16
        found.append(
            Claim(
                f"A4: {speed}× faster than {other} ({'FP8' if size == 8 else 'W4A4'})",
                f"{other} at {rate:.0f} tokens/s, {rate * read / 1e12:.2f} TB/s",
                Verdict.UNKNOWN,
                f"{percent(rate * read / paper.A100_BANDWIDTH)} of an A100's memory. If one memory"
                f" bound both, the core would be {read / token.bytes:.2f}× as fast. Neither the"
                " bandwidth of the others nor their units and area are in the text",
            )
        )
    return found


def _by_use(setting: Setting, used: float, rate: float, claimed: float) -> Verdict:
    if used > 1:
        return Verdict.CONTRADICTS
    # What others measured is of one model.
    slow = paper.A100_EAGER / setting.bound()
    fast = paper.A100_TUNED / setting.bound()
    if setting.shape.name != "LLaMA-2-7B":
        slow, fast = 0.0, 1.0
    if slow <= used <= fast:
        return Verdict.ASSUMED
    return Verdict.HOLDS if used > fast else Verdict.NOT


def batched_claims(setting: Setting) -> list[Claim]:
    found = []
    batch = paper.BATCH
    for bits, claimed, single in (
        (4, paper.SPEED_BATCH_A4, paper.SPEED_A4["A100"]),
        (3, paper.SPEED_BATCH_A3, paper.SPEED_A3["A100"]),
    ):
        at = setting.at(activation_bits=bits)
        rate, bound = at.rate(batch), at.bound(batch)
        used, before = rate / claimed / bound, at.rate() / single / at.bound()
        found.append(
            Claim(
                f"A{bits}: {claimed}× faster than the A100 at a batch of {batch}",
                f"{rate / bound:.2f}× over an A100 at its bandwidth ({rate:.0f} and {bound:.0f}"
                " tokens/s)",
                Verdict.NOT if used < before else Verdict.ASSUMED,
                f"needs an A100 at {percent(used)} of its bandwidth, after {percent(before)} at a"
                " batch of one; the text says that its use rises",
            )
        )
    four = setting.at(activation_bits=4)
    theirs = four.bound(batch) / four.bound()
    wanted = theirs * paper.SPEED_BATCH_A4 / paper.SPEED_A4["A100"]
    gain = growth(four)
    one = growth(four.at(bandwidth=min(paper.STACKS.values())))
    found.append(
        Claim(
            "with the batch all accelerators gain throughput by reusing weights",
            f"{gain:.2f}× at a batch of {batch}",
            Verdict.HOLDS if gain > 1 + CLOSE else Verdict.NOT,
            f"a column is shared, but {batch} vectors take {batch} times the cycles, and one"
            f" already takes all. With one stack of HBM2 (256 GB/s) the gain is {one:.2f}×. An A100"
            f" gains {theirs:.2f}× at equal use of its bandwidth, so {paper.SPEED_A4['A100']}× and"
            f" {paper.SPEED_BATCH_A4}× say that KLLM gains {wanted:.2f}×: a memory of"
            f" {bandwidth_of_growth(four, wanted) / 1e12:.1f} TB/s",
        )
    )
    return found


def token_joules(setting: Setting, batch: int = 1) -> float:
    """Energy of a token: Table I's power over its time, and the HBM's of what is read."""
    token = setting.token(batch)
    chip = paper.TOTAL_POWER * token.cycles / setting.core.clock
    return (chip + 8 * token.bytes * paper.HBM_JOULES_A_BIT) / batch


def shared_claims(setting: Setting) -> list[Claim]:
    """What a batch shares: its energy, and how much A3 gains."""
    batch = paper.BATCH
    four, three = setting.at(activation_bits=4), setting.at(activation_bits=3)
    joules = [token_joules(four, size) for size in (1, batch)]
    claimed = paper.SPEED_BATCH_A3 / paper.SPEED_BATCH_A4
    single = paper.SPEED_A3["A100"] / paper.SPEED_A4["A100"]
    ratio = three.rate(batch) / four.rate(batch)
    chip = paper.TOTAL_POWER * four.token().cycles / setting.core.clock
    return [
        Claim(
            "a larger batch lowers the energy of all accelerators by reusing weights",
            f"A4: {1e3 * joules[0]:.0f} mJ a token, {1e3 * joules[1]:.0f} at a batch of {batch}",
            Verdict.ASSUMED if joules[1] < (1 - CLOSE) * joules[0] else Verdict.NOT,
            f"{1e3 * chip:.0f} mJ on chip at Table I's power, the rest in the HBM at"
            f" {paper.HBM_JOULES_A_BIT * 1e12:.1f} pJ a bit, where a column is read once for all",
        ),
        Claim(
            f"A3 is {claimed:.3f} times faster than A4 at a batch of {batch}, {single:.3f} times at"
            " one",
            f"{ratio:.3f} times at either"
            if close(ratio, three.rate() / four.rate())
            else f"{ratio:.3f} times, {three.rate() / four.rate():.3f} at one",
            Verdict.of(close(ratio, claimed), close(three.rate() / four.rate(), single)),
            f"quotients of the gains over the A100; {100 * CLOSE:.0f} % may differ. The core's"
            " time is its products' at any batch",
        ),
    ]


def lost(core: Core) -> float:
    """Rate of a product of `K` rows that its outliers cost, of one without any."""
    without = column_cycles(dataclasses.replace(core, share=0), K)
    return 1 - without / column_cycles(core, K)


def search_loss(setting: Setting, cache: bool) -> float:
    """Rate of all layers' products that the paper's search costs if nothing hides it.

    cache
        Queries, new keys and new values are split too.
    """
    shape, core = setting.shape, setting.core
    split = [shape.hidden] * (VECTORS - 1) + [shape.inner]
    if cache:
        split += [shape.hidden] + [shape.kv_heads * shape.head] * 2
    search = sum(
        search_cycles(min(core.tile, k - at), outlier_count(min(core.tile, k - at), core.share))
        for k in split
        for at in range(0, k, core.tile)
    )
    return search / (search + setting.token().layers / shape.layers)


def outliers_claims(setting: Setting) -> list[Claim]:
    four, three = (
        setting.at(share=0.01).at(activation_bits=4),
        setting.at(share=0.01).at(activation_bits=3),
    )
    by_ports = {r: lost(four.at(entries=r).core) for r in (1, 2, 4, 8, 16)}
    low, high = paper.LOST
    fit = [r for r in range(1, 33) if lost(four.at(entries=r).core) <= high]
    searched = [search_loss(at, cache) for cache in (False, True) for at in (four, three)]
    whole = 1 - four.rate() / four.at(share=0.0).rate()
    return [
        Claim(
            f"1 % of outliers cost KLLM {100 * low:.0f} to {100 * high:.0f} % of KLLM-S's"
            " throughput: their multiplication",
            ", ".join(f"R = {r}: {percent(value)}" for r, value in by_ports.items()),
            Verdict.ASSUMED if fit else Verdict.NOT,
            f"T against the same product without outliers, {K} × {K}; the whole token loses"
            f" {percent(whole)} at R = {four.core.entries}."
            + (f" Up to {100 * high:.0f} % from R = {fit[0]} on." if fit else "")
            + " R is not in the text, and KLLM-S multiplies its outliers too",
        ),
        Claim(
            "the same: their search, to which the text attributes it",
            f"{percent(searched[0])} and {percent(searched[1])} (A4, A3) of the layers' rate with"
            f" {VECTORS} vectors a layer, {percent(searched[2])} and {percent(searched[3])} with"
            " queries, keys and values too",
            Verdict.ASSUMED if min(searched) <= high and max(searched) >= low else Verdict.NOT,
            "if nothing hides it: log2 N cycles for both trees, and as many for each pop,"
            f" {search_cycles(K, outlier_count(K, 0.01))} for {K} values; tiles of a longer vector"
            " one after another. This project's Orizuru pops in one cycle and splits a vector"
            " while the one before is multiplied",
        ),
    ]
