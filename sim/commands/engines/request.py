"""What a language model is asked to say, and by which blocks."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hw.catalogue import FOLDERS
from hw.parameters import require
from sim.commands.engines import DEFAULT
from sim.core.memory import FASTEST, MemoryTiming
from sim.drivers.board.run import BoardChoice

CHECKS = ("all", "attention", "none")


@dataclasses.dataclass(frozen=True)
class Request:
    """What to say and by which blocks.

    attention, linear
        Catalogue names, or "none" for NumPy in float32.
    prompt
        Text; the user's message where `chat` is set, otherwise what is continued.
    more
        Texts that are continued together with it.
    tokens
        To make at most; a token that ends an answer is the last.
    capacity
        Tokens whose keys and values each layer keeps.
    settings
        ``NAME=VALUE`` of the blocks' parameters, ``BLOCK.NAME=VALUE`` where there are two blocks.
    model
        A model's name or file, as ``open_model`` has it.
    verilog
        Files that replace the generated Verilog, each as ``FILE`` or ``BLOCK=FILE``.
    trust
        As in ``sim run``.
    check
        Which blocks have their bit-exact models beside them.
    threads
        Layers whose RTL is simulated at once.
    options
        Options of attention's block by name, see :data:`sim.commands.engines.OPTIONS`.
    board
        The board that the block is on; None for a simulation of the block alone.
    multiplier
        What products of significands are made of in that simulation, one of
        :data:`hw.component.MULTIPLIERS`.
    """

    prompt: str
    attention: str = DEFAULT
    linear: str = "none"
    chat: bool = False
    tokens: int = 24
    capacity: int = 64
    settings: Sequence[str] = ()
    model: Path | str | None = None
    memory: MemoryTiming = FASTEST
    verilog: Sequence[str] = ()
    trust: bool = False
    check: str = "all"
    threads: int = 2
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    board: BoardChoice | None = None
    more: Sequence[str] = ()
    multiplier: str = "columns"

    @property
    def prompts(self) -> list[str]:
        """All texts to continue."""
        return [self.prompt, *self.more]

    @property
    def at_once(self) -> int:
        """Layers at once: a board runs one layer after another."""
        return 1 if self.board else self.threads


def of_blocks(texts: Sequence[str], blocks: list[str], file: bool = False) -> dict[str, list[str]]:
    """Settings ``NAME=VALUE`` or files of each block, by ``BLOCK.`` or ``BLOCK=`` before them.

    :raises ParameterError: if a text names a block that is not in the run, or none of two.
    """
    found: dict[str, list[str]] = {block: [] for block in blocks}
    what, mark = ("verilog", "=") if file else ("set", ".")
    for text in texts:
        named = [block for block in blocks if text.startswith(block + mark)]
        if named:
            found[named[0]].append(text.removeprefix(named[0] + mark))
            continue
        # A parameter's name has no dot; a file's may.
        other = re.match(rf"({'|'.join(FOLDERS)})\.\w+(?==)" if file else r"[\w.]+(?=\.)", text)
        rule = f"{what} must name a block of the run, {' or '.join(blocks)}"
        require(other is None, rule, other and other[0])
        example = f"{blocks[0]}{mark}{'FILE' if file else 'NAME=VALUE'}"
        require(len(blocks) == 1, f"{what} must name its block, as {example}", text)
        found[blocks[0]].append(text)
    return found
