"""What a language model asks of blocks' engines, and of their parts, one for each layer."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from golden.lm.model import Llama
from golden.lm.tokenizer import Tokenizer
from golden.lm.weights import Config
from sim.commands.engines.part import RtlPart
from sim.commands.engines.workers import Submit
from sim.core.design import Design
from sim.core.dram.timing import DramUse
from sim.core.memory import MemoryTiming


class Part(Protocol):
    """One layer's attention, or products, by RTL; see :class:`RtlAttention`."""

    cycles: Any
    """For each token a number, or a sequence of them."""
    bits: int

    def bytes_moved(self) -> dict[str, int]: ...

    def timings(self) -> dict[str, MemoryTiming]: ...

    def drams(self) -> list[DramUse]: ...

    def close(self) -> None: ...


class Products(Part, Protocol):
    """Matrix products of one layer, and what else of it the block computes."""

    combine: Callable[[str, Any, Any], Any] | None
    """:meth:`golden.lm.model.Llama.combine` of this layer; None: the block has none."""
    turn: Callable[[Any, Any], Any] | None
    """:meth:`golden.lm.model.Llama.turn` of this layer, of the tokens' positions and heads; None
    likewise."""

    def multiply(self, name: str, x: Any) -> Any: ...

    def runs(self, tokens: int) -> int:
        """Runs of a prompt of that many tokens that are submitted one by one."""
        ...


class ProductEngine(Protocol):
    """Matrix products of a model in the block's arithmetic."""

    def parameters(self, config: Config, rows: int) -> Any: ...

    def require_fit(self, p: Any, config: Config, rows: int, tokens: int) -> None: ...

    def quantise(
        self,
        model: Llama,
        tokenizer: Tokenizer,
        about: dict,
        parameters: Any,
        progress: Callable[[str], None] = ...,
    ) -> Llama: ...

    def layers(
        self,
        design: Design,
        quantised: Llama,
        timing: MemoryTiming = ...,
        check: bool = ...,
        submit: Callable[[int], Submit] = ...,
        beside: Sequence[RtlPart] = ...,
    ) -> Sequence[Products]:
        """Products of each layer; `beside` is their attention on the same block, if it is."""
        ...
