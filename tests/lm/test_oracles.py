"""Tiny models of each architecture by llama.cpp, which `make oracles` installs as xllamacpp.

Files are float32, and so is llama.cpp's work but for GELU, which it looks up in FP16.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from golden.lm.architectures import read_weights
from golden.lm.gguf_file import GGUFFile
from golden.lm.gguf_tokenizer import read_tokenizer
from golden.lm.model import Llama
from golden.lm.tokenizer import Tokenizer
from tests.lm import test_architectures as architectures
from tests.lm import test_sentence_piece as sentence_piece
from tests.support.lm.tiny_llama import MERGES, SIZES, TOKENS, random_tensors, write_gguf

pytestmark = pytest.mark.campaign
ANSWER = ord("a")
"""A token that llama.cpp is made to answer: it tells no probabilities beside half a character."""
SIZES_OF = {"llama": SIZES} | architectures.SIZES_OF
BYTE_LEVEL = {"gpt-2": "llama", "smollm": "llama", "llama-bpe": "llama", "qwen2": "qwen2"}
# Pairs that only some patterns leave in one word.
ACROSS = [
    "1 8",
    "18 7",
    "7 2",
    "' s",
    "' S",
    "' l",
    "'l l",
    "Ċ Ċ",
    "Ċ Ġ",
    "Ġ Ġ",
    '" t',
    "; Ġ",
    "½ )",
]
WORDS = [*TOKENS, *(pair.replace(" ", "") for pair in ACROSS)]
TEXT = "It's the 1872nd theme; they'll pay £20 (about ½).\n\n \t\"the  THE'S\" naïve 中🙂 x_1 "


@dataclasses.dataclass(frozen=True)
class Pair:
    """A model here, and the logarithms of probabilities by llama.cpp for the token after a prompt.

    The prompt is a text or numbers of tokens.
    """

    model: Llama
    tokenizer: Tokenizer
    other: Callable[[str | list[int]], np.ndarray]

    def difference(self, prompt: str | list[int]) -> float:
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        logits = self.model.logits(self.model.hidden(tokens)[-1:])[0].astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        found = self.other(prompt)
        assert np.isfinite(found).all() and found.shape == expected.shape
        return float(np.abs(found - expected).max())


def pair(path) -> Pair:
    file = GGUFFile(path)
    model = Llama(read_weights(file))
    server = server_of(path)

    def other(prompt):
        done = server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": 1,
                "n_probs": model.config.vocab,
                "temperature": 0.0,
                "logit_bias": [[ANSWER, 1000.0]],
                "cache_prompt": False,
            }
        )
        found = np.full(model.config.vocab, np.nan)
        for entry in done["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            found[entry["id"]] = entry["logprob"]
        return found

    return Pair(model, read_tokenizer(file), other)


def server_of(path):
    """llama.cpp with the file, as exact as it can be."""
    llama_cpp = pytest.importorskip("xllamacpp", reason="make oracles installs it")
    parameters = llama_cpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = 128
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.warmup = parameters.fit_params = False
    parameters.verbosity = -1
    parameters.flash_attn_type = llama_cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.cache_type_k = parameters.cache_type_v = llama_cpp.ggml_type.GGML_TYPE_F32
    return llama_cpp.Server(parameters)


@pytest.mark.parametrize("arch", SIZES_OF)
def test_probabilities(tmp_path, arch):
    sizes = SIZES_OF[arch] | {"context": 128}
    tensors = random_tensors(5, sizes, arch)
    both = pair(write_gguf(tmp_path / "m.gguf", tensors, sizes=sizes, arch=arch))
    tokens = [int(token) for token in np.random.default_rng(6).integers(len(TOKENS), size=40)]
    bound = 1e-2 if arch == "gemma3" else 1e-4
    for count in (1, 2, 3, 4, 5, 9, 20, 40):
        assert both.difference(tokens[:count]) < bound, count


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_words(tmp_path, pre):
    """Other tokens would have other probabilities."""
    arch = BYTE_LEVEL[pre]
    options = {"sizes": SIZES | {"context": 128}, "arch": arch, "tokens": WORDS}
    tensors = random_tensors(5, **options)
    merges = [*MERGES, *ACROSS]
    path = write_gguf(tmp_path / "m.gguf", tensors, pre=pre, merges=merges, bos=0, **options)
    same_tokens(pair(path), TEXT)


def test_sentence_pieces(tmp_path):
    sizes = SIZES | {"context": 128}
    tensors = random_tensors(5, sizes, tokens=sentence_piece.TOKENS)
    file = sentence_piece.write(tmp_path / "m.gguf", tensors, sizes=sizes)
    same_tokens(pair(file.path), TEXT)


def same_tokens(both: Pair, text: str) -> None:
    assert both.difference(text) < 1e-4
    for start in range(0, len(text), 9):
        part = text[start : start + 20]
        assert both.difference(part) < 1e-4, part
        other = both.tokenizer.encode(part)[::-1]
        if other != other[::-1]:
            assert np.abs(both.other(other) - both.other(part)).max() > 0.1, part
