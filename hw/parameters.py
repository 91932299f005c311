"""What every generator's parameters object offers: presets, settings from text, a file name."""

import dataclasses
import difflib
import hashlib
import re
from collections.abc import Mapping

LONGEST_SLUG = 108
"""Characters of a name's part made of parameters, at most."""


class ParameterError(ValueError):
    """A parameter, preset or block name that cannot be built; the message is one sentence."""


def require(condition: bool, rule: str, value: object) -> None:
    """Raise :class:`ParameterError` as "`rule`, not `value`" unless `condition` holds."""
    if not condition:
        raise ParameterError(f"{rule}, not {value!r}")


def require_one_of(what: str, name: str, known: list[str], aliases: tuple[str, ...] = ()) -> None:
    """Raise :class:`ParameterError`, with the nearest of them, unless a name is `known`."""
    if name not in known and name not in aliases:
        rule = f"{what} must be one of {', '.join(known)}"
        raise ParameterError(f"{rule}, not {name!r}{meant(name, known)}")


def meant(name: str, known: list[str]) -> str:
    """The end of a message about an unknown name: "; did you mean ...?", or nothing."""
    lower = name.lower()
    # Two kinds of near names: a part of a name, and a name with a typing error.
    parts = [other for other in known if len(lower) > 2 and lower in other.lower()]
    near = difflib.get_close_matches(lower, known, n=3, cutoff=0.62)
    if not parts and not near:
        return ""
    first, *others = list(dict.fromkeys([*near, *parts]))[:3]
    return f"; did you mean {' or '.join([', '.join([first, *others[:-1]]), *others[-1:]])}?"


def snake_case(name: str) -> str:
    """``float_add`` of ``FloatAdd``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Base of the frozen parameters objects.

    A subclass is a frozen dataclass of integers, booleans and strings with defaults. It validates
    in ``__post_init__``, derives widths and cycle counts as properties, and names its presets.
    """

    @classmethod
    def presets(cls) -> Mapping[str, "Parameters"]:
        """Named configurations, smallest first; the defaults' is among them."""
        return {"default": cls()}

    @classmethod
    def preset_name(cls, name: str) -> str:
        """The preset's name for ``first``, the smallest, or ``default``, the default values."""
        presets = cls.presets()
        if name == "first":
            return next(iter(presets))
        # A block may name the preset of the default values as it likes, such as `fp16`.
        if name == "default" and name not in presets:
            return list(presets)[list(presets.values()).index(cls())]
        return name

    @classmethod
    def preset(cls, name: str) -> "Parameters":
        presets = cls.presets()
        name = cls.preset_name(name)
        require_one_of("preset", name, [*presets])
        return presets[name]

    @property
    def latency(self) -> int:
        """Cycles from the transfer of a transaction's last input beat to its first output beat."""
        raise TypeError(f"{type(self).__name__} does not state a latency")

    @property
    def idle_bound(self) -> int:
        """Cycles at most, or about, in which no beat passes though nothing stalls."""
        return self.latency

    @property
    def responses_in_order(self) -> bool:
        """Whether external memories must answer in the order of their requests despite tags."""
        return False

    def replace_from_text(self, settings: list[str]) -> "Parameters":
        """Apply ``name=value`` settings as typed on a command line.

        :raises ParameterError: for an unknown name or a value of the wrong type or range.
        """
        fields = {field.name: field for field in dataclasses.fields(self)}
        changes = {}
        for setting in settings:
            name, separator, text = setting.partition("=")
            require(bool(separator), "a setting must have the form name=value", setting)
            require_one_of("parameter name", name, [*fields])
            # The value in place says which type the text must have.
            changes[name] = _value_from_text(name, text, type(getattr(self, name)))
        return dataclasses.replace(self, **changes)

    def slug(self) -> str:
        """All parameters as part of a file or module name: ``n16_k16_lanes16``.

        The end of a long one is a hash of the whole, as tools limit names (Verilator: 127).
        """
        values = dataclasses.asdict(self).items()
        slug = "_".join(f"{name}{int(v) if isinstance(v, bool) else v}" for name, v in values)
        if len(slug) <= LONGEST_SLUG:
            return slug
        digest = hashlib.sha256(slug.encode()).hexdigest()[:8]
        return f"{slug[: LONGEST_SLUG - 9]}_{digest}"


def _value_from_text(name: str, text: str, kind: type) -> int | bool | str:
    if kind is bool:
        known = {"true": True, "1": True, "false": False, "0": False}
        require(text.lower() in known, f"{name} must be true or false", text)
        return known[text.lower()]
    if kind is int:
        try:
            return int(text, 0)
        except ValueError:
            raise ParameterError(f"{name} must be an integer, not {text!r}") from None
    return text
