"""Policies on a model of whose seven layers one sees all tokens: the others keep their window."""

import numpy as np
import pytest

from golden.algorithms.attention import DecodeAttention
from golden.algorithms.baselines import StreamingAttention
from golden.evaluation.in_context import run_dense, run_policy
from golden.evaluation.measure import measure
from golden.evaluation.policies import parse
from golden.evaluation.windows import Window
from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.model import Llama
from golden.lm.perplexity import perplexity
from tests.lm.test_architectures import GEMMA
from tests.support.lm.tiny_llama import random_tensors, write_gguf

TOKENS = [int(token) for token in np.random.default_rng(0).integers(260, size=30)]
STREAMING = "streaming:capacity=6,sinks=2"
QUERIES = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gemma") / "tiny.gguf"
    tensors = random_tensors(3, GEMMA, "gemma3")
    return Llama(read_weights(GGUFFile(write_gguf(path, tensors, sizes=GEMMA, arch="gemma3"))))


def streaming(model, made):
    """Attentions with streaming's in the layer that sees all tokens, which `made` gets."""
    attentions = model.dense()
    attentions[5] = StreamingAttention(capacity=6, sinks=2)
    made.append(attentions[5])
    return attentions


def test_measure(model):
    made: list[DecodeAttention] = []
    expected = perplexity(model, TOKENS, lambda: streaming(model, made))
    found = measure(parse(STREAMING), model, TOKENS)
    assert found.perplexity == expected.perplexity
    assert found.perplexity != measure(parse("dense"), model, TOKENS).perplexity
    assert found.traffic.k_rows == made[0].traffic.k_rows - GEMMA["kv_heads"]  # the first token's
    assert found.rows == 6


def test_products(model):
    found = measure(parse("rtn:weight_bits=8,activation_bits=8"), model, TOKENS)
    assert found.perplexity == pytest.approx(measure(parse("dense"), model, TOKENS).perplexity, 0.1)
    assert found.traffic.k_rows == found.traffic.dense_rows > 0


def test_at_a_fixed_context(model):
    window = Window(tuple(TOKENS), QUERIES, "text:0")
    dense, first = run_dense(model, window), len(TOKENS) - 1 - QUERIES
    found = run_policy(parse(STREAMING), model, dense)
    attentions = model.dense()
    attentions[5] = inner = StreamingAttention(capacity=6, sinks=2)
    for attention, seen in zip(attentions, dense.prefix, strict=True):
        attention.sequence(seen["q"], seen["k"], seen["v"])
    before = inner.traffic.k_rows
    hidden = model.hidden(TOKENS[first:-1], attentions, start=first)
    logits = model.logits(hidden).astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    loss = -log_p[np.arange(QUERIES), TOKENS[-QUERIES:]].mean()
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.traffic.k_rows == inner.traffic.k_rows - before
    assert found.kept == 6
    # Dense attention itself goes on from the prefix as from the beginning.
    exact = run_policy(parse("dense"), model, dense)
    assert exact.loss == pytest.approx(exact.dense, rel=1e-5)
