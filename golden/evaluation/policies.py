"""The algorithms by name, with parameters as in ``voting:capacity=128``."""

import dataclasses
import difflib
import inspect
import math
from collections.abc import Mapping
from typing import Any

from golden import InputError
from golden.algorithms.attention import DecodeAttention, DenseAttention
from golden.algorithms.baselines import (
    H2OAttention,
    QuantisedCacheAttention,
    SnapKVAttention,
    SpAttenAttention,
    StreamingAttention,
)
from golden.algorithms.baselines.round_to_nearest import RoundToNearestLlama
from golden.algorithms.baselines.smoothquant import SmoothQuantLlama
from golden.algorithms.blocks import BlockEvictionAttention
from golden.algorithms.kllm.model import QuantizedLlama
from golden.algorithms.lad import LocalityAwareAttention
from golden.algorithms.topick import TokenPickerAttention
from golden.algorithms.tsuru import TsuruAttention
from golden.algorithms.unicaim import StaticDynamicAttention
from golden.algorithms.unicaim.bit_exact import BitExactAttention
from golden.algorithms.veda import VotingAttention
from golden.lm.model import Llama

POLICIES: dict[str, type[Any]] = {
    "dense": DenseAttention,
    "streaming": StreamingAttention,
    "h2o": H2OAttention,
    "snapkv": SnapKVAttention,
    "blocks": BlockEvictionAttention,
    "spatten": SpAttenAttention,
    "kv": QuantisedCacheAttention,
    "voting": VotingAttention,
    "topick": TokenPickerAttention,
    "lad": LocalityAwareAttention,
    "unicaim": StaticDynamicAttention,
    "unicaim_core": BitExactAttention,
    "tsuru": TsuruAttention,
    "rtn": RoundToNearestLlama,
    "smoothquant": SmoothQuantLlama,
    "kllm": QuantizedLlama,
}
"""Classes of an attention of one layer, or of a model with quantised products around the float one.

Their constructors differ: the text of a policy names the arguments.
"""

_GIVEN = (
    *("model", "samples", "tuning", "progress", "cached"),
    *("rope", "cascade", "layer", "constants"),
)
"""Parameters that the program sets, not the user."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """One algorithm with its parameters.

    text
        As typed, such as ``voting:capacity=128``.
    """

    text: str
    name: str
    parameters: dict[str, Any]

    @property
    def quantises_products(self) -> bool:
        """Whether it replaces the model's matrix products and leaves attention dense."""
        return not _is_attention(self.name)

    @property
    def needs_model(self) -> bool:
        """Whether q, k and v are not enough: a trace of them has neither products nor constants."""
        return self.quantises_products or self.needs_constants

    @property
    def needs_constants(self) -> bool:
        """Whether it has to know what the model's keys are like before a sequence begins."""
        return "constants" in _signature(self.name)

    def attention(self, **defaults) -> DecodeAttention:
        """A new instance for one layer; `defaults` set parameters that the text does not."""
        return self.attentions(1, **defaults)[0]

    def attentions(self, layers: int, **defaults) -> list[DecodeAttention]:
        """New instances for the layers of a model and one sequence, see ``for_layers``.

        `defaults` set parameters that the text does not; a ``seed`` among them is the first
        layer's, and each layer has the next one. ``rope`` is ``rope_of`` the model.
        """
        if self.quantises_products:
            return [DenseAttention() for _ in range(layers)]
        seeds = [
            {"seed": defaults["seed"] + layer} if "seed" in defaults else {}
            for layer in range(layers)
        ]
        return POLICIES[self.name].for_layers([self._with(defaults | seed) for seed in seeds])

    def model(self, model: Llama, **defaults) -> Llama:
        """The model with the policy's matrix products; ``InputError`` if it refuses a value."""
        if not self.quantises_products:
            return model
        try:
            return POLICIES[self.name](model, **self._with({"cached": True} | defaults))
        except ValueError as error:
            raise InputError(f"policy {self.text}: {error}") from None

    def _with(self, defaults: dict[str, Any]) -> dict[str, Any]:
        known = _signature(self.name)
        return {name: x for name, x in defaults.items() if name in known} | self.parameters


def parse(text: str, **defaults) -> Policy:
    """A policy from ``NAME`` or ``NAME:param=value,param=value``; tuples as ``1/2/3``.

    `defaults` are those that the caller passes to ``attention`` or ``model`` later. Raises
    ``InputError`` if the name, a parameter or a value is wrong.
    """
    name, _, rest = text.partition(":")
    if name not in POLICIES:
        raise InputError(f"policy {text}: there is no {name!r}{_meant(name, POLICIES)}")
    known, values = parameters(name), {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if key not in known:
            raise InputError(f"policy {text}: {name} has no {key!r}{_meant(key, known)}")
        if not equals or key in values:
            raise InputError(f"policy {text}: give {key} once, as {key}=VALUE")
        values[key] = _value(text, key, value, known[key].annotation)
    scale = values.get("scale")
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        raise InputError(f"policy {text}: scale must be above 0 and finite, not {scale}")
    policy = Policy(text, name, values)
    given = policy._with(defaults)
    missing = [
        key for key, p in known.items() if p.default is inspect.Parameter.empty and key not in given
    ]
    if missing:
        hint = " (or --prompt N for all policies)" if "prompt" in missing else ""
        needed = ", ".join(f"{key}=…" for key in missing)
        raise InputError(f"policy {text}: {name} needs {needed}{hint}")
    try:
        if _is_attention(name):
            policy.attention(**defaults)
        else:
            POLICIES[name].check(**{key: p.default for key, p in known.items()} | values)
    except ValueError as error:
        raise InputError(f"policy {text}: {error}") from None
    return policy


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """What may be set on the command line: name to annotation and default."""
    return {key: p for key, p in _signature(name).items() if key not in _GIVEN}


def _signature(name: str) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(POLICIES[name]).parameters


def describe(name: str) -> str:
    """One line for the help: the policy's parameters with their defaults."""
    listed = [
        key if p.default is inspect.Parameter.empty else f"{key}={_text(p.default)}"
        for key, p in parameters(name).items()
    ]
    return f"{name}:{','.join(listed)}" if listed else name


def _is_attention(name: str) -> bool:
    return issubclass(POLICIES[name], DecodeAttention)


def _value(text: str, key: str, value: str, annotation) -> Any:
    """The value, converted to the type of the parameter's annotation."""
    kinds = getattr(annotation, "__args__", None) or (annotation,)
    if type(None) in kinds and value == "none":
        return None
    try:
        if bool in kinds:
            return {"true": True, "false": False, "1": True, "0": False}[value.lower()]
        if int in kinds:
            return int(value)
        if float in kinds and "tuple" not in str(annotation):
            return float(value)
        if "tuple" in str(annotation):
            return tuple(float(part) for part in value.split("/"))
    except (KeyError, ValueError):
        kind = "true or false" if bool in kinds else "a number"
        raise InputError(f"policy {text}: {key} must be {kind}, not {value!r}") from None
    return value


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(f"{x:g}" for x in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _meant(word: str, known) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
