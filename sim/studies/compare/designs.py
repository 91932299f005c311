"""Designs and algorithms that are compared, and settings that decide what each of them reads."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from hw.lad.system_parameters import TILES
from hw.parameters import ParameterError, Parameters, require, require_one_of
from sim.studies.compare import algorithms, decode_cores, paper_cores
from sim.studies.compare.data import LayerData, Shape
from sim.studies.compare.step import LayerStep

TSURU_TOKENS = 4096
"""The core's largest capacity."""
PORTS = 8
"""Lanes of Token-Picker's core on memories without channels."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An algorithm without a core.

    knobs
        Function of the shape and the memory's channels, as :class:`Compared` has it.
    moves
        Function of the shape, its data and the knobs: what a layer's step moves.
    """

    knobs: Callable[[Shape, int], dict[str, Any]]
    moves: Callable[[Shape, LayerData, dict[str, Any]], algorithms.Moves]


@dataclasses.dataclass(frozen=True)
class Compared:
    """A design.

    knobs
        Function of the shape and the memory's channels: settings by name, which are not
        parameters of the block or which decide several of them.
    parameters, step
        Functions that make the block's parameters and a layer's step.
    most
        Tokens in view above which it is left out unless it is named.
    variant
        Of another design: compared only if it is named.
    """

    knobs: Callable[[Shape, int], dict[str, Any]]
    parameters: Callable[[Shape, dict[str, Any]], Any]
    step: Callable[[Any, Shape, LayerData, dict[str, Any]], LayerStep]
    most: int = 1 << 20
    variant: bool = False


def kept(shape: Shape, channels: int) -> dict[str, Any]:
    """A fifth of all tokens, the new one besides."""
    return {"kept": max(2, shape.n // 5)}


def lad_tiles(shape: Shape, channels: int) -> dict[str, Any]:
    """The paper's tiles, or one for each kv head; each with separate channels if there are as
    many."""
    tiles = min(TILES, shape.kv_heads)
    return {"tiles": tiles, "memory_ports": tiles if channels >= tiles else 1}


DESIGNS = {
    "baseline.dense_core": Compared(
        lambda shape, channels: {}, decode_cores.dense_parameters, decode_cores.dense_step
    ),
    "baseline.h2o_core": Compared(kept, decode_cores.h2o_parameters, decode_cores.h2o_step),
    "veda.veda_core": Compared(kept, decode_cores.veda_parameters, decode_cores.veda_step),
    "tsuru.tsuru_core": Compared(
        lambda shape, channels: {"threshold": 5e-4},
        decode_cores.tsuru_parameters,
        decode_cores.tsuru_step,
        most=TSURU_TOKENS,
    ),
    # A lane for each channel, so that all lanes together have the memory's bandwidth.
    "topick.topick_core": Compared(
        lambda shape, channels: {"threshold": 1e-3, "lanes": channels},
        paper_cores.topick_parameters,
        paper_cores.topick_step,
    ),
    # Rows and rows selected of the paper's array.
    "unicaim.unicaim_core": Compared(
        lambda shape, channels: {"rows": min(576, shape.n - 1), "top_k": 64},
        paper_cores.unicaim_parameters,
        paper_cores.unicaim_step,
    ),
    # The model runs all tokens, and tables of more positions take minutes to compile.
    "lad.lad_tile": Compared(
        lambda shape, channels: {},
        paper_cores.lad_parameters,
        paper_cores.lad_step,
        most=1024,
    ),
    "lad.lad_system": Compared(
        lad_tiles, paper_cores.lad_system_parameters, paper_cores.lad_system_step, variant=True
    ),
    "kllm.kllm_core": Compared(
        lambda shape, channels: {}, paper_cores.kllm_parameters, paper_cores.kllm_step
    ),
}

ALGORITHMS = {
    # A workload that its authors released.
    "spatten": Algorithm(lambda shape, channels: {"keep": 0.5, "values": 0.3}, algorithms.spatten)
}


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A design with its settings, or an algorithm, which has no parameters."""

    name: str
    knobs: dict[str, Any]
    parameters: Parameters | None

    def step(self, shape: Shape, data: LayerData) -> LayerStep:
        return DESIGNS[self.name].step(self.parameters, shape, data, self.knobs)

    def moves(self, shape: Shape, data: LayerData) -> algorithms.Moves:
        return ALGORITHMS[self.name].moves(shape, data, self.knobs)


def choose(name: str, shape: Shape, channels: int, settings: Sequence[str]) -> Chosen:
    """A design or an algorithm, with the settings ``DESIGN.x=value`` that are its own.

    :raises ParameterError: for a setting that it has not, or that does not fit.
    """
    own = [s.removeprefix(f"{name}.") for s in settings if s.startswith(f"{name}.")]
    of = DESIGNS.get(name) or ALGORITHMS[name]
    knobs, rest = of.knobs(shape, channels), []
    for setting in own:
        key, _, text = setting.partition("=")
        if key not in knobs:
            rest.append(setting)
            continue
        kind = type(knobs[key])
        try:
            knobs[key] = kind(text)
        except ValueError:
            word = "whole number" if kind is int else "number"
            raise ParameterError(f"{key} of {name} must be a {word}, not {text}") from None
    check(name, knobs, shape, channels)
    if isinstance(of, Algorithm):
        require(not rest, f"a setting of {name} must be one of {', '.join(knobs)}", rest)
        return Chosen(name, knobs, None)
    return Chosen(name, knobs, of.parameters(shape, knobs).replace_from_text(rest))


def check(name: str, knobs: dict[str, Any], shape: Shape, channels: int) -> None:
    """:raises ParameterError: if the knobs do not fit the shape or the memory."""
    for key in ("kept", "rows"):
        if key in knobs:
            least, most = {"kept": (2, shape.n - 2), "rows": (8, shape.n - 1)}[key]
            rule = f"{key} of {name} must be from {least} to {most}"
            require(least <= knobs[key] <= most, rule, knobs[key])
    if "threshold" in knobs:
        fits = 0 <= knobs["threshold"] < 1
        require(fits, f"threshold of {name} must be from 0 and below 1", knobs["threshold"])
    if "keep" in knobs:
        rule = f"keep of {name} must be above 2/7, where the last layer keeps none, and at most 1"
        require(2 / 7 < knobs["keep"] <= 1, rule, knobs["keep"])
    if "values" in knobs:
        rule = f"values of {name} must be above 0 and at most 1"
        require(0 < knobs["values"] <= 1, rule, knobs["values"])
    if "lanes" in knobs:
        lanes = knobs["lanes"]
        power = lanes >= 1 and lanes & (lanes - 1) == 0 and lanes <= channels
        rule = f"lanes of {name} must be a power of two up to the memory's channels, {channels}"
        require(power, rule, lanes)


def chosen_designs(names: Sequence[str], shape: Shape) -> tuple[list[str], dict[str, str]]:
    """What to run, and why the rest is left out; all but variants if none is named.

    :raises ParameterError: if there is no such design.
    """
    for name in names:
        require_one_of("design", name, [*DESIGNS, *ALGORITHMS])
    left = {
        name: f"not built for n above {compared.most} unless it is named by --design"
        for name, compared in DESIGNS.items()
        if not names and shape.n > compared.most
    }
    every = [name for name, compared in DESIGNS.items() if not compared.variant]
    return [name for name in names or [*every, *ALGORITHMS] if name not in left], left


def require_known(settings: Sequence[str]) -> None:
    """:raises ParameterError: for a setting of no design."""
    for setting in settings:
        name, _, value = setting.partition("=")
        designs = [*DESIGNS, *ALGORITHMS]
        known = any(name.startswith(f"{design}.") for design in designs) and bool(value)
        require(known, "a setting must have the form DESIGN.NAME=VALUE", setting)
