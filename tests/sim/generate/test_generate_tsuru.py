"""A language model that speaks through the sixth design's core."""

import json

import numpy as np
import pytest

from golden.trace import RUN
from hw.tsuru.tsuru_core import TsuruCoreParameters
from tests.support.sim.generated import TOKENS, attention_command, require_dense, result_of

LAYERS, KV_HEADS = 3, 2
SETTINGS = "--set capacity=64 --set depth=8 --set kept=8"
PARAMETERS = TsuruCoreParameters(8, 64, 4, KV_HEADS, 2, 8, kept=8)


@pytest.fixture
def generated(run, model):
    def command(options):
        return run(attention_command(model, "tsuru.tsuru_core", f"{SETTINGS} {options}"))

    return command


def words_of_searches(tokens: int) -> int:
    """Search words, a sink's two and the mean, of all steps."""
    words = PARAMETERS.choice.words
    return LAYERS * KV_HEADS * sum(words(token + 4) + 3 for token in range(tokens))


def test_it_reads_what_it_chooses(generated):
    every, some = (result_of(generated, f"--above {above}") for above in ("1e-9", "0.05"))
    tokens = every["prompt_tokens"] + TOKENS - 1
    for result in (every, some):
        assert result["mismatches"] == 0 and result["bits_compared"] > 0
        assert result["rows_kept"] == tokens and result["evicted"] == [[]] * LAYERS
        figures = result["figures"]
        assert figures["rows in view"] == LAYERS * KV_HEADS * tokens * (tokens + 1) / 2
        sinks = LAYERS * KV_HEADS * tokens
        read = result["bytes"]["kv_read"] // 16 - words_of_searches(tokens)
        assert read >= figures["rows read"] - sinks  # rows beyond `kept` twice
    assert every["figures"]["rows read"] == every["figures"]["rows in view"]
    assert some["figures"]["rows read"] < every["figures"]["rows read"]


def test_constants_of_the_prompt(generated, tmp_path):
    """Attention is as dense as with K as it is, and the record has q and K as they were."""
    prompt = "the a the the a a the a the a a the"
    first: dict = {}
    for which, channels in (("none", (0, 0)), ("mean", (1, 0)), ("smooth", (1, 1))):
        path = tmp_path / f"{which}.npz"
        options = f"--prompt '{prompt}' --above 1e-9 --trace-out {path}"
        options += "" if which == "smooth" else f" --constants {which}"
        result = result_of(generated, options)
        assert result["mismatches"] == 0 and result["constants"] == which
        figures = result["figures"]
        names = "channels less a mean", "channels balanced"
        every = LAYERS * KV_HEADS * PARAMETERS.d
        assert tuple(figures[name] / every for name in names) == channels
        words = "less its mean", "its channels balanced"
        assert tuple(int(word in result["note"]) for word in words) == channels
        with np.load(path) as trace:
            q, k, v, o = trace["q"], trace["k"], trace["v"], trace[f"{RUN}o"]
        for layer in range(LAYERS):
            require_dense(o[layer], q[layer], k[layer], v[layer], atol=0.5)
        # Keys of the first layer do not depend on any attention.
        tokens = result["prompt_tokens"]
        keys = first.setdefault("k", k[0, :, :tokens])
        np.testing.assert_allclose(k[0, :, :tokens], keys, atol=0.02)


def test_what_does_not_fit_names_its_parameter(generated, run, model):
    status, _, err = run(
        attention_command(model, "tsuru.tsuru_core", "--set capacity=16 --set kept=8")
    )
    assert status == 2 and "capacity must be at least 17" in err
    status, _, err = generated("--above 0")
    assert status == 2 and "above must be above 0 and at most 1" in err
    status, _, err = generated("--constants all")
    assert status == 2 and "constants must be one of none, mean, smooth, not 'all'" in err


@pytest.mark.campaign
def test_64_tokens_of_the_real_model(run, smollm2):
    """All layers, every bit: an output of 64 FP16 numbers and a flag for each head and token."""
    status, out, err = run(
        f"generate --gguf {smollm2} --attention tsuru.tsuru_core --tokens 64 --json"
    )
    assert status == 0, err
    result = json.loads(out)
    tokens = result["prompt_tokens"] + len(result["tokens"]) - 1
    assert len(result["tokens"]) == 64 and result["constants"] == "smooth"
    assert result["mismatches"] == 0 and result["bits_compared"] > 30 * 9 * 64 * 16 * tokens
    assert result["figures"]["channels balanced"] == 30 * 3 * 64
