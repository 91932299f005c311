"""Energy of a decoded token: Figs. 8b and 12."""

import dataclasses

from golden.algorithms.kllm.cost import published as paper
from golden.studies.kllm_cost.rates import Setting, percent
from golden.studies.study import Claim, Verdict


def energy_claims(setting: Setting) -> list[Claim]:
    four = setting.at(activation_bits=4)
    token = four.token()
    ratio = paper.ENERGY_A100 / paper.SPEED_A4["A100"]
    own = paper.A100_POWER / ratio
    left = own - paper.TOTAL_POWER
    bandwidth = left / paper.HBM_JOULES_A_BIT / 8
    rate = bandwidth / token.bytes
    chip = ratio * paper.TOTAL_POWER
    memory = four.rate() * token.bytes * 8 * paper.HBM_JOULES_A_BIT
    spatten = paper.ENERGY_SPATTEN / paper.SPEED_A4["SpAtten"]
    pairs = [b / a for a, b in zip(paper.ENERGY_A4, paper.ENERGY_A3, strict=True)]
    return [
        Claim(
            f"A4: {paper.ENERGY_A100}× less energy than the A100",
            f"with {paper.SPEED_A4['A100']}× the speed, {ratio:.1f}× less power: {own:.1f} W beside"
            f" an A100 at {paper.A100_POWER:.0f} W",
            Verdict.NOT if rate < four.bound() else Verdict.HOLDS,
            f"beside {paper.TOTAL_POWER} W on chip {left:.1f} W are left for the HBM. At"
            f" {paper.HBM_JOULES_A_BIT * 1e12:.1f} pJ a bit they move {bandwidth / 1e12:.2f} TB/s,"
            f" {rate:.0f} tokens/s, where an A100 may reach {four.bound():.0f} and the core's"
            f" {four.rate():.0f} take {memory:.0f} W. Without the HBM the figures agree:"
            f" {ratio:.1f} × {paper.TOTAL_POWER} W are {chip:.0f} W, a likely A100",
        ),
        Claim(
            f"A4: {paper.ENERGY_SPATTEN}× less energy than SpAtten",
            f"{spatten:.2f}× less power",
            Verdict.UNKNOWN,
            f"SpAtten at {spatten * paper.TOTAL_POWER:.1f} W on chip; neither its power nor its"
            " memory's is in the text",
        ),
        Claim(
            "A4: " + ", ".join(f"{value}×" for value in paper.ENERGY_A4) + " less energy than"
            f" {', '.join(paper.BASELINES)}",
            "seven figures for five names",
            Verdict.UNKNOWN,
            "the first is the A100's and the fourth SpAtten's by the abstract; Atom's and MECLA's"
            " may be among the others. A3 over A4 is the same in all,"
            f" {min(pairs):.3f} to {max(pairs):.3f}, where its speed gains"
            f" {paper.SPEED_A3['A100'] / paper.SPEED_A4['A100']:.3f}",
        ),
    ]


@dataclasses.dataclass(frozen=True)
class Saving:
    """Fig. 12's energies, the whole of (A) being 1.

    hbm
        Of (A), what the step to (B) says it is.
    steps
        (A) to (D) by the text.
    floor
        What reading the weights takes in (B), (C) and (D).
    most
        Of (A), HBM's share that leaves (D) its size.
    """

    hbm: float
    steps: tuple[float, float, float, float]
    floor: float
    most: float


def saving(setting: Setting, cumulative: bool = False) -> Saving:
    """Fig. 12 with each step over the one before, or (C) over (A)."""
    b = 1 / paper.SAVED_B
    c = (1 if cumulative else b) / paper.SAVED_C
    d = c / paper.SAVED_D
    hbm = (1 - b) / paper.HBM_SAVED
    cache = 2 * setting.shape.layers * setting.shape.kv_heads * setting.shape.head * 2
    weights = 2 * setting.shape.weights
    share = weights / (weights + cache * setting.context)
    floor = hbm * share * (1 - paper.HBM_SAVED)
    return Saving(hbm, (1.0, b, c, d), floor, d / (share * (1 - paper.HBM_SAVED)))


def saving_claims(setting: Setting) -> list[Claim]:
    each, whole = saving(setting), saving(setting, cumulative=True)
    token = setting.at(activation_bits=3).token()
    seconds = token.cycles / setting.core.clock
    memory = token.bytes * 8 * paper.HBM_JOULES_A_BIT
    chip = paper.TOTAL_POWER * seconds
    return [
        Claim(
            f"(B) weights of 4 bits: {100 * paper.HBM_SAVED:.0f} % less HBM energy,"
            f" {paper.SAVED_B}× less in all",
            f"HBM is {percent(each.hbm)} of (A), {percent(each.hbm / 4 * paper.SAVED_B)} of (B)",
            Verdict.CONTRADICTS if each.floor > each.steps[3] else Verdict.HOLDS,
            f"1 − 0.75 h = 1/{paper.SAVED_B}. If (D) is to hold, h is at most {percent(each.most)}"
            f" of (A) ({percent(whole.most)} if (C) is over (A)): 75 % of it are"
            f" {percent(0.75 * each.most)} of the whole, and (B) saves"
            f" {1 / (1 - 0.75 * each.most):.2f}× ({1 / (1 - 0.75 * whole.most):.2f}×)",
        ),
        Claim(
            f"(C) activations of 3 bits, products on indices: {paper.SAVED_C}×",
            f"at most {each.steps[1] / each.floor:.2f}× over (B), {1 / each.floor:.2f}× over (A)",
            Verdict.CONTRADICTS if each.floor > each.steps[2] else Verdict.HOLDS,
            f"weights have 4 bits in (B) and (C), and reading them takes {percent(each.floor)} of"
            f" (A) by the share above; all of (C) is {percent(each.steps[2])}, or"
            f" {percent(whole.steps[2])} if it is over (A)",
        ),
        Claim(
            f"(D) nonlinear operations on indices: {paper.SAVED_D}× more",
            f"they were {percent(1 - 1 / paper.SAVED_D)} of (C), all of (D) is"
            f" {percent(each.steps[3])} of (A)",
            Verdict.UNKNOWN if each.floor < each.steps[3] else Verdict.CONTRADICTS,
            f"less than reading the weights takes in (D) too, {percent(each.floor)} of (A). By"
            f" formula a token takes {chip * 1e3:.0f} mJ on chip ({paper.TOTAL_POWER} W) and"
            f" {memory * 1e3:.0f} mJ in the HBM ({paper.HBM_JOULES_A_BIT * 1e12:.1f} pJ a bit)",
        ),
    ]
