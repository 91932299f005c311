"""Pictures of KLLM's cost model."""

import dataclasses
from typing import TYPE_CHECKING

from golden.algorithms.kllm.cost import MODELS, decode
from golden.algorithms.kllm.cost import published as paper
from golden.evaluation.plots import figure
from golden.studies.kllm_cost.energy_claims import saving
from golden.studies.kllm_cost.rates import MEMORIES, Setting
from golden.studies.study import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("llama-2-7b", "mistral-7b", "llama-2-13b", "llama-30b", "llama-2-70b")
"""LLaMA-7B and 13B have the shapes of LLaMA-2's."""


def pictures(setting: Setting) -> list[Picture]:
    """Rates, cycles by the context, and energy."""
    return [
        Picture(
            "kllm_cost_speed",
            "tokens a second of the core and of an A100, by model and memory (Fig. 8a)",
            lambda: _speed(setting),
        ),
        Picture(
            "kllm_cost_context",
            "cycles of a token by the length of the context",
            lambda: _context(setting),
        ),
        Picture(
            "kllm_cost_energy",
            "energy of the steps of Fig. 12, and of reading the weights in each",
            lambda: _energy(setting),
        ),
    ]


def _speed(setting: Setting) -> "Figure":
    drawn = figure(9.6, 4.4)
    axes = drawn.add_subplot()
    models = [dataclasses.replace(setting, model=name).at(activation_bits=4) for name in SHOWN]
    width = 0.8 / (len(MEMORIES) + 1)
    bound = [at.bound() if at.fits else 0 for at in models]
    heights = {"A100 at all its bandwidth": bound} | {
        f"core A4, {name}{' memory' if name == 'ideal' else ''}": [
            at.at(bandwidth=bandwidth).rate() for at in models
        ]
        for name, bandwidth in MEMORIES.items()
    }
    for number, (label, values) in enumerate(heights.items()):
        x = [at + (number - 2) * width for at in range(len(SHOWN))]
        axes.bar(x, values, width, label=label)
    for at, value in enumerate(bound):
        if value:
            claimed = value * paper.SPEED_A4["A100"]
            axes.plot(
                [at - 2.5 * width, at + 2.5 * width],
                [claimed, claimed],
                "k--",
                label=f"{paper.SPEED_A4['A100']}× that A100" if at == 0 else None,
            )
        else:
            axes.annotate("does not fit", (at - 2 * width, 1), rotation=90, ha="center", size=8)
    axes.set_xticks(range(len(SHOWN)), [MODELS[name].name for name in SHOWN])
    axes.set_yscale("log")
    axes.set_ylim(0.9)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("tokens/s, one sequence")
    axes.grid(alpha=0.3, axis="y")
    drawn.legend(loc="outside lower center", ncols=3, fontsize=8)
    return drawn


def _context(setting: Setting) -> "Figure":
    drawn = figure(9.6, 3.8)
    axes = drawn.subplots(1, 2, sharey=True)
    step = max(1, setting.tokens // 16)
    contexts = list(range(step, 2 * setting.tokens + 1, step))
    for one, bits in zip(axes, (4, 3), strict=True):
        core = setting.at(activation_bits=bits).core
        tokens = [decode(setting.shape, core, t) for t in contexts]
        parts = {
            "layers": [t.layers for t in tokens],
            "head": [t.head for t in tokens],
            "queries × keys": [t.keys for t in tokens],
            "scores × values": [t.values for t in tokens],
            "softmax, not hidden": [t.softmax for t in tokens],
        }
        if not any(parts["softmax, not hidden"]):
            del parts["softmax, not hidden"]
        one.stackplot(
            contexts, *([v / 1e6 for v in values] for values in parts.values()), labels=list(parts)
        )
        one.set_title(f"{setting.shape.name}, W4A{bits}", size=9)
        one.set_xlabel("tokens of context")
        one.grid(alpha=0.3)
    axes[0].set_ylabel("10⁶ cycles of a token")
    axes[0].legend(loc="upper left", fontsize=8)
    return drawn


def _energy(setting: Setting) -> "Figure":
    drawn = figure()
    axes = drawn.add_subplot()
    found = saving(setting)
    weights = [4 * found.floor, found.floor, found.floor, found.floor]
    names = ["(A) FP16", "(B) 4-bit weights", "(C) 3-bit\nactivations", "(D) nonlinear\non indices"]
    x = range(len(names))
    axes.bar([at - 0.2 for at in x], found.steps, 0.4, label="all, by the text")
    axes.bar(
        [at + 0.2 for at in x], weights, 0.4, label="reading the weights, by the text's step to (B)"
    )
    axes.set_xticks(list(x), names)
    axes.set_yscale("log")
    axes.set_ylabel("energy, (A) = 1")
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize=8)
    return drawn
