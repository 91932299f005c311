"""The real model against figures from outside this package.

The expected token numbers, perplexity and continuation were made from the same GGUF file by
Hugging Face's ``transformers`` 5.23 (float32 on PyTorch) and ``tokenizers`` 0.23, with the
pre-tokenizer of the model's own ``tokenizer.json`` (digits singly, then GPT-2's bytes).
"""

import numpy as np
import pytest

from golden import __main__ as cli
from golden.lm.capture import capture
from golden.lm.commands import open_model
from golden.lm.model import generate
from golden.lm.perplexity import perplexity
from golden.trace import load, shipped

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def opened(smollm2):
    model, tokenizer, _ = open_model(smollm2)
    return model, tokenizer


@pytest.fixture(scope="module")
def prose():
    return shipped()[0].with_name("cranes.txt")


def test_tokens(opened):
    _, tokenizer = opened
    text = "It's 1872; they'll  pay £20,000 (about ½).\n\n  \"Really?\"\tNaïve café — 中国 🙂 x_1"
    assert tokenizer.encode(text) == [
        1589, 506, 216, 33, 40, 39, 34, 43, 502, 3060, 216, 2290, 10257, 34, 32, 28, 32, 32, 32,
        365, 10097, 216, 16738, 595, 8866, 476, 3733, 682, 4817, 197, 26062, 46494, 37366, 1841,
        216, 28589, 23022, 138, 47526, 1792, 79, 33,
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat(opened):
    _, tokenizer = opened
    assert tokenizer.encode("<|im_start|>user<|im_end|>") == [1, 4093, 2]
    chat = tokenizer.chat("Hello")
    assert tokenizer.decode(chat) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [token for token in chat if token < 17] == [1, 2, 1, 2, 1]
    assert tokenizer.ends == {0, 2}  # <|endoftext|>, <|im_end|>


def test_perplexity_of_plain_prose(opened, prose):
    model, tokenizer = opened
    tokens = tokenizer.encode(prose.read_text())
    assert len(tokens) == 901
    assert perplexity(model, tokens).perplexity == pytest.approx(22.48638, rel=1e-3)


def test_greedy_continuation(opened):
    model, tokenizer = opened
    prompt = tokenizer.encode("The capital of France is")
    assert prompt == [504, 3575, 282, 4649, 314]
    made = generate(model, prompt, 12)
    assert made == [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33]
    assert tokenizer.decode(made) == " Paris.\n\nThe answer is: 201"


@pytest.mark.campaign
def test_shipped_traces_can_be_made_again(call, smollm2, prose, tmp_path):
    path = tmp_path / "again.npz"
    assert call(cli.main, f"trace --text {prose} --gguf {smollm2} -o {path}")[0] == 0
    (original,) = shipped()
    stored, made = load(original), load(path)
    assert stored.meta == made.meta
    _same_beginning(stored, made)


def test_the_beginning_of_shipped_traces_can_be_made_again(opened, prose):
    """No token attends to a later one, so the first tokens' results do not change."""
    model, tokenizer = opened
    stored = load(shipped()[0])
    made = capture(
        model,
        tokenizer.encode(prose.read_text(), 40),
        stored.meta["layers"],
        activations=40,
        columns=stored.meta["columns"],
        meta={},
    )
    _same_beginning(stored, made)


def _same_beginning(stored, made):
    """As far as `made` goes."""
    tokens = made.q.shape[2]
    for name in "qkv":
        _same(getattr(stored, name)[:, :, :tokens], getattr(made, name))
    assert stored.x.keys() == made.x.keys() and stored.w.keys() == made.w.keys()
    for name in stored.x:
        _same(stored.x[name][: len(made.x[name])], made.x[name])
        np.testing.assert_array_equal(stored.w[name], made.w[name])


def _same(stored, made):
    """Equal but for the order in which another machine's matrix products add up."""
    assert stored.dtype == made.dtype
    largest = np.abs(stored).max()
    np.testing.assert_allclose(
        made.astype(np.float32), stored.astype(np.float32), rtol=2e-3, atol=1e-3 * float(largest)
    )
