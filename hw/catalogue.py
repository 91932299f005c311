# amaranth: UnusedElaboratable=no
# (a component is also created only to read its ports)
"""Every block this project builds, by name. All commands and tests find blocks here.

A block is a component class with the attributes `summary` and `source`, in the module of its name:
``kllm.orizuru`` is the class ``Orizuru`` of ``hw/kllm/orizuru.py``, its parameters class is
``OrizuruParameters`` of the same module.
"""

import dataclasses
import functools
import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING

from hw import HOME
from hw.parameters import ParameterError, Parameters, meant, require_one_of, snake_case

if TYPE_CHECKING:
    from hw.component import Component

FOLDERS = (
    "stream",
    "arith",
    "attention",
    "kllm",
    "veda",
    "topick",
    "lad",
    "unicaim",
    "tsuru",
    "baseline",
)
"""Packages of `hw` that hold blocks, in the order of listings."""
PARTS = ("boards.sdram_controller", "bus.axi_memory")
"""Components that are no blocks, as no testbench can say what their outputs are without what is
beside them; their Verilog and area can be had like a block's."""


@dataclasses.dataclass(frozen=True)
class Block:
    """One generator, by its component class; a test's own has neither summary nor source."""

    component: type["Component"]

    @property
    def folder(self) -> str:
        """Its package in `hw`; ``tests`` for a component that a test defines."""
        package, *below = self.component.__module__.removeprefix(HOME).split(".")
        return below[0] if package == "hw" else "tests"

    @property
    def module(self) -> str:
        """The file's name without ending: the class in snake case."""
        return snake_case(self.component.__name__)

    @property
    def name(self) -> str:
        return f"{self.folder}.{self.module}"

    @property
    def summary(self) -> str:
        """One line for listings."""
        return getattr(self.component, "summary", "")

    @property
    def source(self) -> str:
        """Paper section, or ``library`` for a block that is this project's own."""
        return getattr(self.component, "source", "")

    @property
    def synthesizable_as(self) -> str:
        """The block to synthesize in place of one for simulation only; empty for all others.

        Such as of a model of an analog circuit.
        """
        return getattr(self.component, "synthesizable_as", "")

    @property
    def parameters_class(self) -> type[Parameters]:
        module = sys.modules[self.component.__module__]
        return getattr(module, f"{self.component.__name__}Parameters")

    def create(self, parameters: Parameters) -> "Component":
        """The hardware component for `parameters`."""
        return self.component(parameters)


@functools.cache
def blocks() -> tuple[Block, ...]:
    """All blocks, by folder and name."""
    found = []
    for folder in FOLDERS:
        package = importlib.import_module(f"{__package__}.{folder}")
        for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
            found += _blocks_of(f"{__package__}.{folder}.{module}")
    return tuple(found)


def _blocks_of(module_name: str) -> list[Block]:
    module = importlib.import_module(module_name)
    classes = vars(module).values()
    return [
        Block(item)
        for item in classes
        if isinstance(item, type) and item.__module__ == module_name and "summary" in vars(item)
    ]


def find(name: str, parts: bool = False) -> Block:
    """The block of that catalogue name. Imports no other blocks than it needs.

    parts
        Whether one of :data:`PARTS` will do.
    :raises ParameterError: if it does not exist.
    """
    folder, _, module = name.partition(".")
    if (folder in FOLDERS and module.isidentifier()) or (parts and name in PARTS):
        package = importlib.import_module(f"{__package__}.{folder}")
        # Modules are listed without importing them: one block imports fast, all of them take
        # seconds.
        if module in [info.name for info in pkgutil.iter_modules(package.__path__)]:
            for block in _blocks_of(f"{__package__}.{name}"):
                return block
    rule = "block must be one of those that `python -m hw list` names"
    raise ParameterError(f"{rule}, not {name!r}{meant(name, [block.name for block in blocks()])}")


def select(name: str, parts: bool = False) -> list[Block]:
    """`name`'s block alone, or every block for ``all``; `parts` as of :func:`find`."""
    return list(blocks()) if name == "all" else [find(name, parts)]


def configurations(name: str, presets: list[str], parts: bool = False) -> list[tuple[Block, str]]:
    """A block, or all of them for ``all``, with each of `presets` that the block has.

    parts
        As of :func:`find`.
    :raises ParameterError: for an unknown block, or a preset that none of them has.
    """
    chosen = select(name, parts)
    known = dict.fromkeys(p for block in chosen for p in block.parameters_class.presets())
    for preset in presets:
        require_one_of("preset", preset, [*known], aliases=("default", "first"))
    return [
        (block, preset)
        for block in chosen
        for preset in dict.fromkeys(map(block.parameters_class.preset_name, presets))
        if preset in block.parameters_class.presets()
    ]
