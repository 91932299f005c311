"""A language model that speaks through the sixth design's core."""

import pytest

from hw.tsuru.tsuru_core import TsuruCoreParameters
from tests.support.sim.generated import TOKENS, attention_command, result_of

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


def test_what_does_not_fit_names_its_parameter(generated, run, model):
    status, _, err = run(
        attention_command(model, "tsuru.tsuru_core", "--set capacity=16 --set kept=8")
    )
    assert status == 2 and "capacity, less 3 a sink, must be at least 17" in err
    status, _, err = generated("--above 0")
    assert status == 2 and "above must be above 0 and at most 1" in err
