"""A language model that speaks through RTL, token after token: the story of a request."""

import contextlib
import dataclasses
import functools
import operator
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from golden.algorithms.attention import DecodeAttention
from golden.lm.commands import open_model
from golden.lm.model import Llama, in_memory
from golden.lm.model import generate as generate_dense
from golden.lm.weights import Layer
from hw.catalogue import Block, find
from hw.parameters import Parameters, require
from sim.commands.engines import OPTIONS, attention_engine, linear_engine
from sim.commands.engines.attention import AttentionEngine, RtlAttention
from sim.commands.engines.protocol import Part, ProductEngine, Products
from sim.commands.engines.record import Record, record_of
from sim.commands.engines.request import CHECKS, Request, of_blocks
from sim.commands.engines.workers import Workers
from sim.core.design import Design, from_file, generate
from sim.core.memory import described
from sim.drivers.board.shared import DesignOnBoard


@dataclasses.dataclass(frozen=True)
class Step:
    """One token more.

    token
        The likeliest after those before.
    cycles
        Cycles of the accelerators for each token that the model read in this step, over all layers:
        one number for each of the prompt's tokens in the first step, then one.
    rows
        Tokens in the cache of each layer.
    bits
        Output bits compared in this step.
    cpu_s, wall_s
        Seconds of this step, the model's other arithmetic included.
    note
        What attention's block has saved so far, in words; empty where there is nothing to say.
    """

    token: int
    cycles: list[int]
    rows: int
    bits: int
    cpu_s: float
    wall_s: float
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Story:
    """What was said.

    result
        The object that ``sim generate --json`` prints.
    record
        What attention's block saw and did; None without one.
    pieces
        Text of each token: the prompt's, then those made.
    """

    result: dict
    record: Record | None
    pieces: list[str]


class Speaker:
    """Model, tokenizer and compiled blocks of a request.

    :raises ParameterError: naming the parameter or the option to change, if something does not fit.
    """

    def __init__(self, request: Request, status: Callable[[str], None] = lambda text: None):
        self.request, self._status = request, status
        self._runs = 0  # of the prompt in a layer, one by one
        self._attention = attention = attention_engine(request.attention)
        self._products = products = linear_engine(request.linear)
        engines: dict[str, AttentionEngine | ProductEngine] = {}
        if attention is not None:
            engines[request.attention] = attention
            # Its codebooks are part of the quantised model.
            fits = not attention.needs_products or request.linear == request.attention
            require(fits, f"linear must be {request.attention} where attention is", request.linear)
        if products is not None:
            engines[request.linear] = products
        require(bool(engines), "attention or linear must be a block", "none")
        require(request.check in CHECKS, f"check must be one of {', '.join(CHECKS)}", request.check)
        model, self.tokenizer, self.about = open_model(request.model)
        self.config = config = model.config
        encode = self.tokenizer.chat if request.chat else self.tokenizer.encode
        self.prompts: list[list[int]] = []
        for text in request.prompts:
            self.prompts.append(encode(text))
            require(bool(self.prompts[-1]), "prompt must have at least one token", text)
        self.prompt = self.prompts[0]
        rule = f"prompt and tokens must be at most the model's context, {config.context}"
        total = max(map(len, self.prompts)) + request.tokens
        require(total <= config.context, rule, total)
        if attention is not None and config.local is not None:
            window = config.local.window
            rule = (
                f"prompt and tokens must be at most {window}, which all of the model's layers see"
            )
            require(total <= window, rule, total)
        settings = of_blocks(request.settings, [*engines])
        files = of_blocks(request.verilog, [*engines], file=True)
        for option in OPTIONS:
            if option.name in request.options:
                option.require_fit(request.attention, request.options[option.name])
        self.parameters: dict[str, Parameters] = {}
        for name, engine in engines.items():
            p = engine.parameters(config, request.capacity).replace_from_text(settings[name])
            engine.require_fit(p, config, request.capacity, total)
            if engine is attention:
                attention.require_attention(p, config, request.capacity, total)
            self.parameters[name] = p
        designs = {name: self._design(find(name), files[name]) for name in engines}
        with contextlib.ExitStack() as stack:
            if request.board is not None:
                designs = {name: self._on_board(one, stack) for name, one in designs.items()}
            status("reading the model …")
            self.dense = in_memory(model)
            self._designs = designs
            self._speaking: Llama = self.dense
            self._quantised: Llama | None = None
            if products is not None:
                p = self.parameters[request.linear]
                quantised = products.quantise(model, self.tokenizer, self.about, p, status)
                self._quantised, self._speaking = quantised, in_memory(quantised)
            self._open = stack.pop_all()  # until it has spoken

    def _on_board(self, design: Design, stack: contextlib.ExitStack) -> DesignOnBoard:
        """The design on the board, which is opened and checked."""
        choice = self.request.board
        assert choice is not None
        self._status(f"opening the board of {design.block.name} …")
        made = choice.design(design.block, design.parameters)
        return DesignOnBoard.of(design, stack.enter_context(choice.open(made)))

    def _design(self, block: Block, files: list[str]) -> Design:
        self._status(f"compiling {block.name} …")
        require(len(files) < 2, f"verilog must be one file for {block.name}", len(files))
        p = self.parameters[block.name]
        if files:
            return from_file(block, p, Path(files[0]), trust=self.request.trust)
        return generate(block, p, self.request.multiplier)

    def speak(self, piece: Callable[[Step, str], None] = lambda step, text: None) -> Story:
        """Continue the prompt; `piece` is called with each step and all text so far.

        :raises Difference: at the first bit in which RTL and bit-exact model differ.
        """
        request, prompt = self.request, self.prompt
        steps: list[Step] = []
        workers = Workers(request.at_once, self._prompt_progress)
        parts = self._parts(workers)
        try:
            cpu = cpu_seconds()
            for step in self._steps(parts, workers):
                steps.append(step)
                piece(step, self.tokenizer.decode(prompt + [s.token for s in steps]))
            cpu = cpu_seconds() - cpu
            return self._story(steps, parts, cpu)
        finally:
            workers.close()
            for part in parts.blocks:
                part.close()
            self._open.close()

    def _rtl(self, workers: Workers, beside: Sequence[RtlAttention] = ()) -> Sequence[RtlAttention]:
        """Attention of each layer by RTL, of one sequence, in blocks of another one `beside` it if
        there is one; empty without a block."""
        request = self.request
        if self._attention is None:
            return []
        return self._attention.attentions(
            self._designs[request.attention],
            self.config,
            request.capacity,
            request.memory,
            request.check != "none",
            workers.of_layer,
            self._quantised,
            beside,
            **request.options,
        )

    def _parts(self, workers: Workers) -> "Parts":
        """Attention and products of each layer."""
        request, rtl = self.request, self._rtl(workers)
        layers: Sequence[Products] = []
        if self._products is not None and self._quantised is not None:
            layers = self._products.layers(
                self._designs[request.linear],
                self._quantised,
                request.memory,
                request.check == "all",
                workers.of_layer,
                rtl if request.linear == request.attention else (),
            )
        read = len(self.prompt)
        self._runs = read * bool(rtl) + (layers[0].runs(read) if layers else 0)
        return Parts(rtl or self.dense.dense(), rtl, layers)

    def _steps(self, of: "Parts", workers: Workers) -> Iterator[Step]:
        count = self.config.layers
        model = Speaking(self._speaking, self._quantised, of.layers)
        new, start, bits = self.prompt, 0, 0
        parts: list[Part] = [*of.rtl, *of.layers[:count]]
        heads = of.layers[count:]  # of the output matrix, which each step multiplies once
        for _ in range(self.request.tokens):
            cpu, wall = cpu_seconds(), time.perf_counter()
            hidden = model.hidden(new, of.attentions, start=start)
            token = int(model.logits(hidden[-1:]).argmax())
            workers.wait()
            compared = sum(part.bits for part in [*parts, *heads])
            each = [np.array(part.cycles[start:]).reshape(len(new), -1).sum(1) for part in parts]
            cycles = np.sum(each, axis=0)
            cycles[-1] += sum(sum(head.cycles[-1]) for head in heads)
            yield Step(
                token,
                cycles.tolist(),
                of.attentions[0].rows // self.config.kv_heads,
                compared - bits,
                cpu_seconds() - cpu,
                time.perf_counter() - wall,
                self._note(figures_of(of.attentions)),
            )
            if token in self.tokenizer.ends:
                return
            start, bits, new = start + len(new), compared, [token]

    def _note(self, figures: dict[str, float]) -> str:
        return "" if self._attention is None else self._attention.note(figures)

    def _prompt_progress(self, done: int) -> None:
        """Every tenth of a prompt, so that long ones are seen to go on."""
        runs = self.config.layers * self._runs
        if done < runs and 10 * done // runs > 10 * (done - 1) // runs:
            self._status(f"prompt of {len(self.prompt)} tokens: {100 * done // runs} % …")

    def _story(self, steps: list[Step], of: "Parts", cpu: float) -> Story:
        request, prompt = self.request, self.prompt
        tokens = [step.token for step in steps]
        self._status("the same text by NumPy …")
        seconds = cpu_seconds()
        reference = generate_dense(self.dense, prompt, len(tokens))
        read = [*prompt, *tokens[:-1]]
        seconds = (cpu_seconds() - seconds) / len(read)
        cycles = [n for step in steps for n in step.cycles]
        result = {
            "text": self.tokenizer.decode(tokens),
            "prompt_tokens": len(prompt),
            "tokens": tokens,
            "cycles": sum(cycles),
            "cycles_per_token": cycles,
            "rows_kept": steps[-1].rows,
            "evicted": [attention.evicted for attention in of.attentions],
            "figures": figures_of(of.attentions),
            "note": steps[-1].note,
            "reference_text": self.tokenizer.decode(reference),
            "first_difference": first_difference(tokens, reference),
            "wall_s": round(sum(step.wall_s for step in steps), 2),
            "dense_numpy_cpu_s_per_token": round(seconds, 3),
            "prompt": request.prompt,
            **self.figures(of.blocks, cpu),
            **(of.rtl[0].settings if of.rtl else {}),
        }
        record = None
        if of.rtl:
            record = record_of(
                read,
                [attention.steps for attention in of.rtl],
                [attention.cycles for attention in of.rtl],
                [layer.cycles for layer in of.layers[: self.config.layers]] or None,
            )
        pieces = [self.tokenizer.decode([token]) for token in prompt + tokens]
        return Story(result, record, pieces)

    def figures(self, blocks: Sequence[Part], cpu: float) -> dict:
        """What ``sim generate --json`` says of the request and of all its parts by RTL."""
        request = self.request
        moved: dict[str, int] = {}
        for part in blocks:
            for kind, count in part.bytes_moved().items():
                moved[kind] = moved.get(kind, 0) + count
        return {
            "mismatches": 0,
            "bits_compared": sum(part.bits for part in blocks),
            "bytes": moved,
            "cpu_s": round(cpu, 2),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "model": self.about["model"],
            "board": request.board and request.board.port,
            "multiplier": request.board.multiplier if request.board else request.multiplier,
            "check": request.check,
            "chat": request.chat,
            "capacity": request.capacity,
            "threads": request.at_once,
            "memory": memories_of(blocks),
            "dram": drams_in(blocks),
            "verilog": list(request.verilog),
            "attention": request.attention,
            "linear": request.linear,
            "blocks": {name: dataclasses.asdict(p) for name, p in self.parameters.items()},
            **dict.fromkeys(option.name for option in OPTIONS),
        }


@dataclasses.dataclass(frozen=True)
class Parts:
    """Parts of each layer.

    attentions
        Attention of each layer, by NumPy if `rtl` is empty.
    rtl
        Attention of each layer by RTL; empty without a block.
    layers
        Products of each layer, and of the output matrix if a block computes it too; empty without
        a block.
    """

    attentions: Sequence[DecodeAttention]
    rtl: Sequence[RtlAttention]
    layers: Sequence[Products]

    @property
    def blocks(self) -> list[Part]:
        return [*self.rtl, *self.layers]


class Speaking(Llama):
    """A model with the products of `layers`, if there are any.

    One more than there are layers multiplies the output matrix. `quantised` says where vectors are
    normalised.
    """

    def __init__(self, model: Llama, quantised: Llama | None, layers: Sequence[Products]) -> None:
        super().__init__(model.weights)
        self._layers, self._quantised = layers, quantised

    def normalise(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        if self._quantised is None:
            return super().normalise(x, gain)
        return self._quantised.normalise(x, gain)

    def combine(self, index: int, op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        by_block = self._layers[index].combine if self._layers else None
        return super().combine(index, op, a, b) if by_block is None else by_block(op, a, b)

    def turn(
        self, index: int, positions: np.ndarray, x: np.ndarray, angles: np.ndarray
    ) -> np.ndarray:
        by_block = self._layers[index].turn if self._layers else None
        if by_block is None:
            return super().turn(index, positions, x, angles)
        return by_block(positions, x)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        if len(self._layers) > self.config.layers:
            return self._layers[-1].multiply("output", hidden)
        return super().logits(hidden) if self._quantised is None else self._quantised.logits(hidden)

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        if self._layers:
            return self._layers[index].multiply
        return super().products(index, layer)


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """The first place at which a text's tokens are not the reference's; None without one."""
    pairs = enumerate(zip(tokens, reference, strict=True))
    return next((number for number, (a, b) in pairs if a != b), None)


def memories_of(parts: Sequence[Part]) -> str | None:
    """Timing of the parts' memories in words; None on a board."""
    texts = [described(timings) for part in parts if (timings := part.timings())]
    return "; ".join(dict.fromkeys(texts)) or None


def drams_in(parts: Sequence[Part]) -> dict | None:
    """Figures of all layers' DRAMs, one layer after another; None for other memories."""
    uses = [use for part in parts for use in part.drams()]
    return functools.reduce(operator.add, uses).as_json() if uses else None


def figures_of(attentions: Sequence[DecodeAttention]) -> dict[str, float]:
    """The attentions' own figures, added up."""
    total: dict[str, float] = {}
    for attention in attentions:
        for name, figure in attention.figures().items():
            total[name] = total.get(name, 0) + figure
    return total


def cpu_seconds() -> float:
    """CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
