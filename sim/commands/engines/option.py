"""Options that the engine of one block adds to ``sim generate``."""

import dataclasses
from collections.abc import Callable
from typing import Any

from hw.parameters import require


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of one block.

    block
        Catalogue name.
    name
        Name, as the engine's ``attention`` takes it; ``--NAME`` on the command line.
    convert
        From the argument's text, as an argparse type.
    metavar, words
        What ``--help`` says.
    rule, fits
        Rule that a value must satisfy, and whether it does.
    """

    block: str
    name: str
    convert: Callable[[str], Any]
    metavar: str
    words: str
    rule: str = ""
    fits: Callable[[Any], bool] = lambda value: True

    def require_fit(self, block: str, value: Any) -> None:
        """:raises ParameterError: with another block, or for a value that breaks the rule."""
        require(block == self.block, f"{self.name} must be used with {self.block} alone", value)
        require(self.fits(value), f"{self.name} {self.rule}", value)
