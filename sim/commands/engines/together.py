"""Several texts continued together: their tokens of a step share the reads of matrices."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from golden.algorithms.attention import DecodeAttention
from golden.lm.model import generate as generate_dense
from hw.parameters import require
from sim.commands.engines.attention import RtlAttention
from sim.commands.engines.protocol import Part
from sim.commands.engines.request import Request
from sim.commands.engines.speak import (
    Parts,
    Speaker,
    Speaking,
    cpu_seconds,
    first_difference,
)
from sim.commands.engines.workers import Workers


@dataclasses.dataclass(eq=False)
class Text:
    """A text: its tokens with the prompt's, and attention of each layer."""

    prompt: list[int]
    attentions: Sequence[DecodeAttention]
    made: list[int] = dataclasses.field(default_factory=list)
    ended: bool = False

    @property
    def length(self) -> int:
        """Number of tokens that the model has read."""
        return len(self.prompt) + len(self.made) - 1


@dataclasses.dataclass(frozen=True)
class Joint:
    """A run of the model: a prompt read, or a token of each text.

    texts
        Numbers of the texts that have a token more.
    cycles
        Cycles of the accelerators in this run.
    """

    texts: list[int]
    cycles: int
    wall_s: float


class Layer:
    """Attention of one layer in several texts, of each the next token."""

    def __init__(self, attentions: Sequence[DecodeAttention]):
        self._attentions = attentions

    def sequence(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """As of one text, of one token for each: [heads, text, d]."""
        first, *others = self._attentions
        if isinstance(first, RtlAttention):
            return first.steps_of([of for of in others if isinstance(of, RtlAttention)], q, k, v)
        texts = enumerate(self._attentions)
        return np.stack([of.step(q[:, n], k[:, n], v[:, n]) for n, of in texts], axis=1)


class Together(Speaker):
    """A :class:`Speaker` of several texts.

    Each text has a separate block for attention, but where the block's contexts hold several texts;
    products of all are by one block a layer. Prompts are read one after another, then each step
    makes a token of every text that has not ended.

    :raises ParameterError: as a Speaker, or if attention and products share a block's memory.
    """

    def __init__(self, request: Request, status: Callable[[str], None] = lambda text: None):
        rule = "board must be left out where there are several prompts"
        require(request.board is None, rule, request.board and request.board.port)
        super().__init__(request, status)
        shared = request.linear == request.attention and not (
            self._attention is not None and self._attention.needs_products
        )
        rule = f"attention must be another block than {request.linear}, or none, for several texts"
        require(not shared, rule, request.attention)

    def continue_all(
        self, progress: Callable[[Joint, int], None] = lambda step, tokens: None
    ) -> dict:
        """Continue all prompts; returns the object that ``sim generate --json`` prints.

        progress
            Called after each run with all tokens made so far.
        :raises Difference: at the first bit in which RTL and bit-exact model differ.
        """
        workers = Workers(self.request.at_once)
        parts = self._parts(workers)
        rtl = [parts.rtl] if parts.rtl else []
        if self._attention is not None:
            shared = self._attention.texts(self.parameters[self.request.attention])
            for number in range(1, len(self.prompts)):
                place = number % shared
                rtl.append(self._rtl(workers, rtl[number - place] if place else ()))
        texts = [
            Text(prompt, rtl[number] if rtl else self.dense.dense())
            for number, prompt in enumerate(self.prompts)
        ]
        blocks: list[Part] = [*(part for each in rtl for part in each), *parts.layers]
        try:
            cpu, steps = cpu_seconds(), []
            for step in self._joint(texts, rtl, parts, workers):
                steps.append(step)
                progress(step, sum(len(text.made) for text in texts))
            return self._told(texts, steps, blocks, cpu_seconds() - cpu)
        finally:
            workers.close()
            for part in blocks:
                part.close()
            self._open.close()

    def _joint(
        self,
        texts: list[Text],
        rtl: list[Sequence[RtlAttention]],
        parts: Parts,
        workers: Workers,
    ) -> Iterator[Joint]:
        model = Speaking(self._speaking, self._quantised, parts.layers)
        counted: list[Part] = [*(part for each in rtl for part in each), *parts.layers]
        before = 0

        def run(chosen: list[int], new: list[int], start: int | list[int], attentions) -> Joint:
            nonlocal before
            wall = time.perf_counter()
            hidden = model.hidden(new, attentions, start=start)
            last = hidden[-len(chosen) :]
            tokens = model.logits(last).argmax(axis=-1)
            workers.wait()
            for number, token in zip(chosen, tokens.tolist(), strict=True):
                texts[number].made.append(token)
                texts[number].ended = token in self.tokenizer.ends
            total = sum(int(np.sum(part.cycles)) for part in counted)
            found, before = total - before, total
            return Joint(chosen, found, time.perf_counter() - wall)

        for number, text in enumerate(texts):
            yield run([number], text.prompt, 0, text.attentions)
        for _ in range(self.request.tokens - 1):
            going = [number for number, text in enumerate(texts) if not text.ended]
            if not going:
                return
            chosen = [texts[number] for number in going]
            layers = [
                Layer(each) for each in zip(*(text.attentions for text in chosen), strict=True)
            ]
            new, start = [text.made[-1] for text in chosen], [text.length for text in chosen]
            yield run(going, new, start, layers)

    def _told(self, texts: list[Text], steps: list[Joint], blocks: list[Part], cpu: float) -> dict:
        self._status("the same texts by NumPy …")
        references = [generate_dense(self.dense, text.prompt, len(text.made)) for text in texts]
        prompts, joint = steps[: len(texts)], steps[len(texts) :]
        return {
            "texts": [self.tokenizer.decode(text.made) for text in texts],
            "prompts": self.request.prompts,
            "prompt_tokens": [len(text.prompt) for text in texts],
            "tokens": [text.made for text in texts],
            "cycles": sum(step.cycles for step in steps),
            "cycles_of_prompts": [step.cycles for step in prompts],
            "cycles_of_steps": [step.cycles for step in joint],
            "texts_of_steps": [len(step.texts) for step in joint],
            "reference_texts": [self.tokenizer.decode(tokens) for tokens in references],
            "first_differences": [
                first_difference(text.made, tokens)
                for text, tokens in zip(texts, references, strict=True)
            ],
            "wall_s": round(sum(step.wall_s for step in steps), 2),
            **self.figures(blocks, cpu),
        }
