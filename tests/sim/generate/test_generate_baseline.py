"""A language model that speaks through the baselines' cores."""

import pytest

from tests.support.sim.generated import TOKENS, attention_command, result_of

LAYERS, HEADS, KV_HEADS, ROW_BYTES = 3, 4, 2, 16
SETTINGS = "--set capacity=32 --set depth=8"


@pytest.fixture
def generated(run, model):
    def command(options):
        return run(attention_command(model, *options.split(" ", 1)))

    return command


def test_dense_reads_every_row_for_each_head_or_once_for_a_group(generated):
    alone = result_of(generated, f"baseline.dense_core {SETTINGS}")
    shared = result_of(generated, f"baseline.dense_core {SETTINGS} --set parallel=2")
    tokens = alone["prompt_tokens"] + TOKENS - 1
    rows = LAYERS * HEADS * tokens * (tokens + 1)  # of K and V
    assert alone["bytes"]["kv_read"] == rows * ROW_BYTES == 2 * shared["bytes"]["kv_read"]
    assert alone["tokens"] == shared["tokens"] and shared["cycles"] < 0.6 * alone["cycles"]
    assert alone["rows_kept"] == tokens and alone["evicted"] == [[]] * LAYERS
    assert alone["mismatches"] == 0 and alone["bits_compared"] > 0


def test_h2o_keeps_as_many_rows_as_asked(generated):
    result = result_of(generated, f"baseline.h2o_core {SETTINGS} --capacity 6")
    tokens = result["prompt_tokens"] + TOKENS - 1
    seen = sum(min(token + 1, 6 + 1) for token in range(tokens))
    assert result["bytes"]["kv_read"] == LAYERS * 2 * HEADS * seen * ROW_BYTES
    assert result["rows_kept"] == 6 + 1  # the last one's row is the next token's
    assert all(evicted for evicted in result["evicted"]) and result["mismatches"] == 0


def test_what_does_not_fit_names_its_parameter(generated):
    status, _, err = generated("baseline.h2o_core --set capacity=32 --capacity 32")
    assert status == 2 and "capacity must be more than the 32 rows kept" in err
    status, _, err = generated("baseline.dense_core --set capacity=16")
    assert status == 2 and "capacity must be at least 17" in err
