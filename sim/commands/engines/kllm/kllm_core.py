"""Matrix products and attention of a language model on KLLM's core (KLLM, III-D and IV).

A layer's matrices are in a separate session, the output matrix in one more, and each layer's
attention in another; all share one compiled core.
"""

import dataclasses
from collections.abc import Callable, Sequence

from golden.algorithms.kllm.attention import OUTLIERS
from golden.algorithms.kllm.model import QuantizedLlama
from golden.algorithms.kllm.quantize import outlier_count
from golden.algorithms.kllm.store import quantized_model
from golden.kllm.kllm_core import parts_of
from golden.lm.joint_products import STEPS
from golden.lm.model import Llama
from golden.lm.tokenizer import Tokenizer
from golden.lm.weights import Config, matrix_shapes
from hw.kllm.kllm_core import KllmCoreParameters
from hw.parameters import require
from sim.commands.engines.attention import AttentionEngine, require_tokens
from sim.commands.engines.kllm.attention import KllmAttention, words_of_attention
from sim.commands.engines.kllm.layer_products import HEAD, KllmLayer, products_of
from sim.commands.engines.layer_vectors import VECTOR_LANES, require_positions
from sim.commands.engines.part import LayerRun, RtlPart
from sim.commands.engines.workers import Submit, at_once
from sim.core.design import Design
from sim.core.memory import FASTEST, MemoryTiming

SHARE = 0.08
"""Share of a vector's values that are outliers, both ends together.

The paper's is 0.01, with which SmolLM2-135M loses a good deal more (docs/results/kllm.md).
"""


class KllmEngine(AttentionEngine[KllmCoreParameters]):
    """Products of all layers and of the output matrix, and attention, of a model."""

    needs_products = True

    def parameters(self, config: Config, rows: int = 0) -> KllmCoreParameters:
        """One core for all: vectors as long as the longest that is normalised.

        Longer ones are multiplied in parts. Its other sizes make a token of SmolLM2 quick to
        simulate.

        rows
            Tokens of attention, whose scores are a row of the softmax.
        """
        lanes, k = 4, config.dim
        n = max(columns for _, columns in matrix_shapes(config).values())
        outliers = max(outlier_count(k, SHARE), min(OUTLIERS, k - 1) if rows else 0)
        group = config.heads // config.kv_heads
        core = KllmCoreParameters(
            k,
            max(n, rows),
            lanes,
            counters=min(9, -(-k // 16)),
            macs=64,
            outliers=outliers,
            entries=min(16, 2 * outliers),
            vectors=1 << (max(group, config.kv_heads) - 1).bit_length(),
            scores=-(-max(rows, 4) // lanes) * lanes,
            depth=32,
            vector_lanes=VECTOR_LANES,
            rotary_pairs=config.rope_dims // 2,
        )
        width = max((most_words(core, config, rows) - 1).bit_length(), 1)
        return dataclasses.replace(core, address_width=width)

    def require_fit(
        self, p: KllmCoreParameters, config: Config, rows: int = 0, tokens: int = 0
    ) -> None:
        """Refuse a core that the model does not fit.

        :raises ParameterError: naming the parameter to change.
        """
        rule = "the model's layers must be like Llama's or Qwen2's"
        require(not config.beyond_llama, rule, config.beyond_llama)
        rule = f"k must be at least {config.dim}, the model's vectors that are normalised"
        require(config.dim <= p.k, rule, p.k)
        lengths = {
            part.stop - part.start
            for length, _ in matrix_shapes(config).values()
            for part in parts_of(length, p.k)
        }
        most = max(outlier_count(length, SHARE) for length in lengths)
        ends = 2 * outlier_count(min(lengths), SHARE)
        rule = f"the model's shortest vector must have more values than its {ends} outliers"
        require(ends < min(lengths), rule, min(lengths))
        rule = f"outliers must be at least {most}, {SHARE:.0%} of the longest vector at both ends"
        require(most <= p.outliers, rule, p.outliers)
        require_positions(p.vector_path, config, tokens)
        words = most_words(p, config, rows)
        least = (words - 1).bit_length()
        rule = f"address_width must be at least {least} for {words} words of memory"
        require(least <= p.address_width, rule, p.address_width)

    def require_attention(
        self, p: KllmCoreParameters, config: Config, rows: int, tokens: int
    ) -> None:
        """Refuse a core on which the model's attention does not fit.

        rows
            Tokens that each layer keeps; none is evicted.
        :raises ParameterError: naming the parameter to change.
        """
        require_tokens(tokens, "capacity", rows)
        for name in ("activation_bits", "weight_bits"):
            require(getattr(p, name) == 4, f"{name} must be 4 for attention", getattr(p, name))
        rule = "centroid_bits must be 0 for attention, whose integers are counted"
        require(p.centroid_bits == 0, rule, p.centroid_bits)
        least = max(config.kv_heads, config.heads // config.kv_heads)
        require(least <= p.vectors, f"vectors must be at least {least} for attention", p.vectors)
        for name in ("scores", "n", "k"):
            require_tokens(tokens, name, getattr(p, name))
        rule = f"outliers must be at least {OUTLIERS} for attention"
        require(p.outliers >= OUTLIERS, rule, p.outliers)

    def quantise(
        self,
        model: Llama,
        tokenizer: Tokenizer,
        about: dict,
        parameters: KllmCoreParameters,
        progress: Callable[[str], None] = lambda text: None,
    ) -> QuantizedLlama:
        """The model as the core computes it, made once and kept in the project's cache folder."""
        model = quantized_model(
            model,
            tokenizer,
            weight_bits=parameters.weight_bits,
            activation_bits=parameters.activation_bits,
            rows=parameters.k,
            outlier_share=SHARE,
            tuned=True,
            progress=progress,
            norms="fused",
            attention="quantised",
            head=True,
        )
        model.half_vectors = bool(parameters.vector_lanes)
        model.half_positions = bool(parameters.rotary_pairs)
        return model

    def layers(
        self,
        design: Design,
        quantised: Llama,
        timing: MemoryTiming = FASTEST,
        check: bool = True,
        submit: Callable[[int], Submit] = lambda layer: at_once,
        beside: Sequence[RtlPart] = (),
    ) -> list[KllmLayer]:
        """One for each layer, and one for the output matrix if that is quantised.

        All have the same compiled design inside; `submit` gives each its own.
        """
        assert isinstance(quantised, QuantizedLlama)
        layers = quantised.config.layers
        return [
            KllmLayer(
                LayerRun(design, number, timing, check, submit(number)),
                *(model, STEPS if number < layers else HEAD),
            )
            for number, model in enumerate(products_of(quantised))
        ]

    def attention(self, run: LayerRun, rows: int) -> KllmAttention:
        model = run.quantised
        assert isinstance(model, QuantizedLlama)  # as the block computes the products too
        return KllmAttention(run, model.config, rows, model.codebooks[run.layer])


def most_words(p: KllmCoreParameters, config: Config, rows: int) -> int:
    """Words of the fullest memory: a layer's matrices, the output matrix, or attention's."""
    layer = sum(words_of_matrix(p, *shape) for shape in matrix_shapes(config).values())
    head = words_of_matrix(p, config.dim, config.vocab)
    return max(layer, head, words_of_attention(p, config, rows))


def words_of_matrix(p: KllmCoreParameters, k: int, n: int) -> int:
    """Words of a matrix in pieces of at most K rows and N columns."""
    wide = [min(p.n, n - start) for start in range(0, n, p.n)]
    tall = [part.stop - part.start for part in parts_of(k, p.k)]
    return sum(p.words(rows, columns) for rows in tall for columns in wide)


engine = KllmEngine()
