"""A language model that speaks through RTL, token after token: the story of a request."""

import contextlib
import dataclasses
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from golden.lm.commands import open_model
from golden.lm.model import Llama
from golden.lm.model import generate as generate_dense
from golden.lm.weights import Layer, Weights
from hw.catalogue import Block, find
from hw.parameters import Parameters, require
from sim.commands.engines import attention_engine, linear_engine
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
        engines = {
            request.attention: attention_engine(request.attention),
            request.linear: linear_engine(request.linear),
        }
        engines = {name: engine for name, engine in engines.items() if engine is not None}
        if request.attention == "kllm.kllm_core":
            # Codebooks of its attention are part of the quantised model.
            rule = "linear must be kllm.kllm_core where attention is"
            require(request.linear == request.attention, rule, request.linear)
        require(bool(engines), "attention or linear must be a block", "none")
        require(request.check in CHECKS, f"check must be one of {', '.join(CHECKS)}", request.check)
        model, self.tokenizer, self.about = open_model(request.gguf)
        self.config = config = model.config
        encode = self.tokenizer.chat if request.chat else self.tokenizer.encode
        self.prompt: list[int] = encode(request.prompt)
        require(bool(self.prompt), "prompt must have at least one token", request.prompt)
        rule = f"prompt and tokens must be at most the model's context, {config.context}"
        total = len(self.prompt) + request.tokens
        require(total <= config.context, rule, total)
        settings = of_blocks(request.settings, [*engines])
        files = of_blocks(request.verilog, [*engines], file=True)
        given = request.threshold
        if given is not None:
            rule = "threshold must be used with topick.topick_core alone"
            require(request.attention == "topick.topick_core", rule, given)
            require(0 <= given < 1, "threshold must be at least 0 and below 1", given)
        if request.top_k is not None:
            rule = "top_k must be used with unicaim.unicaim_core alone"
            require(request.attention == "unicaim.unicaim_core", rule, request.top_k)
        self.parameters: dict[str, Parameters] = {}
        for name, engine in engines.items():
            p = engine.parameters(config, request.capacity).replace_from_text(settings[name])
            engine.require_fit(p, config, request.capacity, total)
            if request.attention == request.linear:
                engine.require_attention(p, config, request.capacity, total)
            self.parameters[name] = p
        designs = {name: self._design(find(name), files[name]) for name in engines}
        with contextlib.ExitStack() as stack:
            if request.board is not None:
                designs = {name: self._on_board(one, stack) for name, one in designs.items()}
            status("reading the model …")
            self.dense = in_memory(model)
            self._engines, self._designs = engines, designs
            self._speaking: Any = self.dense
            self._quantised: Any = None
            if request.linear in engines:
                engine = engines[request.linear]
                p = self.parameters[request.linear]
                quantised = engine.quantise(model, self.tokenizer, self.about, p, status)
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
        return generate(block, p)

    def speak(self, piece: Callable[[Step, str], None] = lambda step, text: None) -> Story:
        """Continue the prompt; `piece` is called with each step and all text so far.

        :raises Difference: at the first bit in which RTL and bit-exact model differ.
        """
        request, prompt = self.request, self.prompt
        steps: list[Step] = []
        workers = Workers(request.at_once, self._prompt_progress)
        attentions, layers = self._parts(workers)
        try:
            cpu = cpu_seconds()
            for step in self._steps(attentions, layers, workers):
                steps.append(step)
                piece(step, self.tokenizer.decode(prompt + [s.token for s in steps]))
            cpu = cpu_seconds() - cpu
            return self._story(steps, attentions, layers, cpu)
        finally:
            workers.close()
            for part in [*attentions, *layers]:
                if hasattr(part, "close"):
                    part.close()
            self._open.close()

    def _parts(self, workers: Workers) -> tuple[list, list]:
        """Attention and products of each layer; no products if NumPy computes them."""
        request, engines, layers = self.request, self._engines, []
        attentions: list = self.dense.dense()
        if request.attention in engines:
            given = {"threshold": request.threshold, "top_k": request.top_k}
            options = {name: value for name, value in given.items() if value is not None}
            if request.attention == request.linear:
                options["codebooks"] = self._quantised.codebooks
            attentions = engines[request.attention].attentions(
                self._designs[request.attention],
                self.config,
                request.capacity,
                request.memory,
                request.check != "none",
                workers.of_layer,
                **options,
            )
        if request.linear in engines:
            layers = engines[request.linear].layers(
                self._designs[request.linear],
                self._quantised,
                request.memory,
                request.check == "all",
                workers.of_layer,
            )
        return attentions, layers

    def _steps(self, attentions: list, layers: list, workers: Workers) -> Iterator[Step]:
        count = self.config.layers
        model = _Speaking(self._speaking, self._quantised, layers)
        new, start, bits = self.prompt, 0, 0
        parts = [part for part in [*attentions, *layers[:count]] if hasattr(part, "cycles")]
        heads = layers[count:]  # of the output matrix, which each step multiplies once
        for _ in range(self.request.tokens):
            cpu, wall = cpu_seconds(), time.perf_counter()
            hidden = model.hidden(new, attentions, start=start)
            token = int(model.logits(hidden[-1:]).argmax())
            workers.wait()
            compared = sum(part.bits for part in [*parts, *heads])
            each = [np.array(part.cycles[start:]).reshape(len(new), -1).sum(1) for part in parts]
            cycles = np.sum(each, axis=0)
            cycles[-1] += sum(sum(head.cycles[-1]) for head in heads)
            yield Step(
                token,
                cycles.tolist(),
                attentions[0].rows // self.config.kv_heads,
                compared - bits,
                cpu_seconds() - cpu,
                time.perf_counter() - wall,
                self._note(figures_of(attentions)),
            )
            if token in self.tokenizer.ends:
                return
            start, bits, new = start + len(new), compared, [token]

    def _note(self, figures: dict[str, float]) -> str:
        engine = self._engines.get(self.request.attention)
        note = getattr(engine, "note", None)
        return note(figures) if note else ""

    def _prompt_progress(self, done: int) -> None:
        """Every tenth of a prompt, so that long ones are seen to go on."""
        kinds = (self.request.attention in self._engines) + 4 * (
            self.request.linear in self._engines
        )
        runs = self.config.layers * len(self.prompt) * kinds
        if done < runs and 10 * done // runs > 10 * (done - 1) // runs:
            self._status(f"prompt of {len(self.prompt)} tokens: {100 * done // runs} % …")

    def _story(self, steps: list[Step], attentions: list, layers: list, cpu: float) -> Story:
        request, prompt = self.request, self.prompt
        tokens = [step.token for step in steps]
        self._status("the same text by NumPy …")
        seconds = cpu_seconds()
        reference = generate_dense(self.dense, prompt, len(tokens))
        read = [*prompt, *tokens[:-1]]
        seconds = (cpu_seconds() - seconds) / len(read)
        moved: dict[str, int] = {}
        for part in [*attentions, *layers]:
            if hasattr(part, "bytes_moved"):
                for kind, count in part.bytes_moved().items():
                    moved[kind] = moved.get(kind, 0) + count
        cycles = [n for step in steps for n in step.cycles]
        pairs = zip(tokens, reference, strict=True)
        result = {
            "text": self.tokenizer.decode(tokens),
            "prompt_tokens": len(prompt),
            "tokens": tokens,
            "mismatches": 0,
            "bits_compared": sum(step.bits for step in steps),
            "cycles": sum(cycles),
            "cycles_per_token": cycles,
            "rows_kept": steps[-1].rows,
            "evicted": [attention.evicted for attention in attentions],
            "bytes": moved,
            "figures": figures_of(attentions),
            "note": steps[-1].note,
            "reference_text": self.tokenizer.decode(reference),
            "first_difference": next((n for n, (a, b) in enumerate(pairs) if a != b), None),
            "cpu_s": round(cpu, 2),
            "wall_s": round(sum(step.wall_s for step in steps), 2),
            "dense_numpy_cpu_s_per_token": round(seconds, 3),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "model": self.about["model"],
            "board": request.board and request.board.port,
            "check": request.check,
            "prompt": request.prompt,
            "chat": request.chat,
            "capacity": request.capacity,
            "threads": request.at_once,
            "memory": memories_of([*attentions, *layers]),
            "verilog": list(request.verilog),
            "attention": request.attention,
            "linear": request.linear,
            "blocks": {name: dataclasses.asdict(p) for name, p in self.parameters.items()},
            **{"threshold": None, "top_k": None, **getattr(attentions[0], "settings", {})},
        }
        record = None
        if request.attention in self._engines:
            record = record_of(
                read,
                [attention.steps for attention in attentions],
                [attention.cycles for attention in attentions],
                [layer.cycles for layer in layers[: self.config.layers]] or None,
            )
        pieces = [self.tokenizer.decode([token]) for token in prompt + tokens]
        return Story(result, record, pieces)


class _Speaking(Llama):
    """A model with the products of `layers`, if there are any.

    One more than there are layers multiplies the output matrix. `quantised` says where vectors are
    normalised.
    """

    def __init__(self, model: Llama, quantised: Llama | None, layers: Sequence) -> None:
        super().__init__(model.weights)
        self._layers, self._quantised = layers, quantised

    def normalise(self, x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        if self._quantised is None:
            return super().normalise(x, gain)
        return self._quantised.normalise(x, gain)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        if len(self._layers) > self.config.layers:
            return self._layers[-1].multiply("output", hidden)
        return super().logits(hidden) if self._quantised is None else self._quantised.logits(hidden)

    def products(self, index: int, layer: Layer) -> Callable[[str, np.ndarray], np.ndarray]:
        if self._layers:
            return self._layers[index].multiply
        return super().products(index, layer)


def memories_of(parts: Sequence) -> str | None:
    """Timing of the parts' memories in words; None on a board."""
    parts = [part for part in parts if hasattr(part, "timings")]
    texts = [described(timings) for part in parts if (timings := part.timings())]
    return "; ".join(dict.fromkeys(texts)) or None


def figures_of(attentions: Sequence) -> dict[str, float]:
    """The attentions' own figures, added up."""
    total: dict[str, float] = {}
    for attention in attentions:
        for name, figure in attention.figures().items():
            total[name] = total.get(name, 0) + figure
    return total


def in_memory(model: Llama) -> Llama:
    """The model with all layers' weights in float32, four bytes each, for many steps."""
    w = model.weights
    layers = [w.layers[index] for index in range(w.config.layers)]
    return Llama(Weights(w.config, w.embedding, layers, w.norm, w.output, w.rope_factors))


def cpu_seconds() -> float:
    """CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
