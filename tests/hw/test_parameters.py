"""Parameters objects: presets, settings typed on a command line, file names."""

import dataclasses
import re

import pytest

from hw.catalogue import blocks
from hw.parameters import LONGEST_SLUG, ParameterError, Parameters, require


@dataclasses.dataclass(frozen=True)
class SampleParameters(Parameters):
    n: int = 4
    fast: bool = False
    kind: str = "plain"

    def __post_init__(self):
        require(self.n >= 1, "n must be at least 1", self.n)
        require(self.n < 100 or self.fast, "n from 100 on must be fast", self.n)

    @classmethod
    def presets(cls):
        return {"small": cls(1), "default": cls()}


def test_require_names_rule_and_value():
    require(True, "x must be odd", 2)
    with pytest.raises(ParameterError, match=r"^x must be odd, not '2'$"):
        require(False, "x must be odd", "2")
    assert issubclass(ParameterError, ValueError)


@pytest.mark.parametrize(
    "setting, name, value",
    [
        ("n=7", "n", 7),
        ("n=0x1F", "n", 31),
        ("n=0b101", "n", 5),
        ("n=0o17", "n", 15),
        ("n= 12 ", "n", 12),
        ("fast=true", "fast", True),
        ("fast=TRUE", "fast", True),
        ("fast=1", "fast", True),
        ("fast=False", "fast", False),
        ("fast=0", "fast", False),
        ("kind=a=b", "kind", "a=b"),
        ("kind=", "kind", ""),
        ("kind=12", "kind", "12"),
    ],
)
def test_text_becomes_the_type_of_the_parameter(setting, name, value):
    start = SampleParameters(fast=not value) if name == "fast" else SampleParameters()
    changed = start.replace_from_text([setting])
    assert getattr(changed, name) == value and type(getattr(changed, name)) is type(value)
    assert changed == dataclasses.replace(start, **{name: value})


@pytest.mark.parametrize(
    "setting, message",
    [
        ("n", "a setting must have the form name=value, not 'n'"),
        ("", "a setting must have the form name=value, not ''"),
        ("m=3", "parameter name must be one of n, fast, kind, not 'm'"),
        ("=3", "parameter name must be one of n, fast, kind, not ''"),
        ("N=3", "parameter name must be one of n, fast, kind, not 'N'; did you mean n?"),
        ("latency=3", "parameter name must be one of n, fast, kind, not 'latency'"),
        ("n=", "n must be an integer, not ''"),
        ("n=four", "n must be an integer, not 'four'"),
        ("n=4.0", "n must be an integer, not '4.0'"),
        ("n=0", "n must be at least 1, not 0"),
        ("n=-5", "n must be at least 1, not -5"),
        ("n=100", "n from 100 on must be fast, not 100"),
        ("fast=yes", "fast must be true or false, not 'yes'"),
        ("fast=2", "fast must be true or false, not '2'"),
    ],
)
def test_a_bad_setting_is_one_sentence(setting, message):
    with pytest.raises(ParameterError) as caught:
        SampleParameters().replace_from_text([setting])
    assert str(caught.value) == message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_settings_apply_together_and_the_last_wins():
    start = SampleParameters()
    # Neither a partial change nor its order is checked by itself: 100 is legal only when fast.
    assert start.replace_from_text(["n=100", "fast=1"]) == SampleParameters(100, True)
    assert start.replace_from_text(["n=5", "n=6"]) == SampleParameters(6)
    assert start.replace_from_text([]) == start == SampleParameters()


def test_presets():
    assert SampleParameters.preset("small") == SampleParameters(1)
    with pytest.raises(ParameterError) as caught:
        SampleParameters.preset("huge")
    assert str(caught.value) == "preset must be one of small, default, not 'huge'"
    assert Parameters.presets() == {"default": Parameters()}


def test_latency_must_be_stated():
    with pytest.raises(TypeError, match="^SampleParameters does not state a latency$"):
        _ = SampleParameters().latency


def test_slug_names_every_parameter():
    assert SampleParameters().slug() == "n4_fast0_kindplain"
    assert SampleParameters(200, True, "x").slug() == "n200_fast1_kindx"


def test_long_slugs_end_with_a_hash():
    """Whole up to the limit; past it different for different parameters, and a module's name."""
    start = "n4_fast0_kind"
    whole = SampleParameters(kind="x" * (LONGEST_SLUG - len(start))).slug()
    assert whole == start + "x" * (LONGEST_SLUG - len(start))
    long = {SampleParameters(kind="x" * 200 + end).slug() for end in "ab"}
    assert len(long) == 2 and all(len(slug) == LONGEST_SLUG for slug in long)
    assert all(slug.startswith(start) and re.fullmatch(r"\w+", slug) for slug in long)


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_every_block_s_parameters_are_plain(block):
    kind = block.parameters_class
    assert issubclass(kind, Parameters) and kind.__dataclass_params__.frozen
    for field in dataclasses.fields(kind):
        assert field.default is not dataclasses.MISSING
        assert type(field.default) in (int, bool, str)
    presets = kind.presets()
    slugs = [preset.slug() for preset in presets.values()]
    assert len(set(slugs)) == len(slugs), "two presets are the same"
    for preset in presets.values():
        assert type(preset) is kind
        assert re.fullmatch(r"[a-z0-9_]+", preset.slug())
        # A slug holds everything: typing it again gives the same object.
        typed = [f"{name}={value}" for name, value in dataclasses.asdict(preset).items()]
        assert kind().replace_from_text(typed) == preset
