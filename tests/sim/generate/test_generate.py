"""A language model whose attention is RTL: its text, its evictions, and faults in the RTL."""

import contextlib
import dataclasses
import io
import json
import re
import sys
import types

import numpy as np
import pytest

from golden.algorithms.attention import attention_scores, softmax, weighted_sum
from golden.algorithms.veda.voting import VotingAttention
from golden.lm.commands import open_model
from golden.lm.model import generate as generate_in_numpy
from golden.trace import load
from hw.catalogue import find
from hw.emit.export import export
from hw.veda.veda_core import VedaCoreParameters
from sim.commands.engines import ATTENTION, speak
from sim.commands.engines.difference import Difference
from sim.commands.engines.speak import Step
from sim.commands.engines.veda.veda_core import engine
from sim.commands.generate import Teller, summary
from sim.core.design import generate as make_design
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf

PROMPT = "the a the"
TOKENS, ROWS, LAYERS = 14, 6, 2
# Those of the core's smallest preset, which other tests compile too.
SMALL = {"rows": 2, "columns": 2, "arrays": 2, "capacity": 32, "depth": 16}
SMALL |= {"position_bits": 8, "count_bits": 4, "contexts": LAYERS}
SETTINGS = " ".join(f"--set {name}={value}" for name, value in SMALL.items())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random Llama of two layers with four heads of eight elements, two kv heads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "layers", LAYERS)
        patch.setitem(SIZES, "heads", 4)
        patch.setitem(SIZES, "dim", 32)
        patch.setitem(SIZES, "context", 512)
        return write_gguf(tmp_path_factory.mktemp("generate") / "tiny.gguf", random_tensors())


@pytest.fixture
def generated(run, model):
    def command(options=""):
        return run(
            f"generate --gguf {model} --prompt '{PROMPT}' --tokens {TOKENS} --capacity {ROWS}"
            f" --json {SETTINGS} {options}"
        )

    return command


def bit_exact(llama):
    return [
        VotingAttention(
            ROWS, reserved=4, protect_reserved=True, bit_exact=True, rows=SMALL["capacity"]
        )
        for _ in range(llama.config.layers)
    ]


def test_text_and_evictions_are_those_of_the_bit_exact_model(generated, model):
    status, out, err = generated()
    assert (status, err) == (0, "")
    result = json.loads(out)
    llama, tokenizer, _ = open_model(model)
    prompt = tokenizer.encode(PROMPT)
    attentions = bit_exact(llama)
    tokens = generate_in_numpy(llama, prompt, TOKENS, attentions)
    assert result["tokens"] == tokens and result["text"] == tokenizer.decode(tokens)
    assert result["evicted"] == [attention.evicted for attention in attentions]
    steps = len(prompt) + TOKENS - 1  # the last token is not read
    assert all(len(evicted) == steps - ROWS for evicted in result["evicted"])
    assert result["prompt_tokens"] == len(prompt) and result["rows_kept"] == ROWS
    assert len(result["cycles_per_token"]) == steps
    assert result["cycles"] == sum(result["cycles_per_token"])
    assert result["mismatches"] == 0 and result["bits_compared"] > LAYERS * steps * 4 * 8 * 16
    # Each kv head reads all rows of K and of V once for its query heads, and writes one of both.
    row = 8 * 2
    seen = [min(step + 1, ROWS + 1) for step in range(steps)]
    assert result["bytes"]["kv_read"] == LAYERS * 2 * 2 * row * sum(seen)
    assert result["bytes"]["kv_written"] == LAYERS * 2 * 2 * row * steps


@pytest.mark.campaign
def test_an_fpgas_multipliers_say_the_same(generated, monkeypatch):
    results, made = [], []

    def recorded(*given):
        made.append(make_design(*given).verilog)
        return make_design(*given)

    monkeypatch.setattr(speak, "generate", recorded)
    for multiplier in ("columns", "dsp"):
        status, out, err = generated(f"--multiplier {multiplier}")
        assert (status, err) == (0, "")
        results.append(json.loads(out))
    assert [result["multiplier"] for result in results] == ["columns", "dsp"]
    columns, dsp = (verilog.count(" * ") for verilog in made)
    assert columns < dsp
    for name in ("tokens", "evicted", "cycles_per_token", "bits_compared", "bytes"):
        assert results[0][name] == results[1][name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--multiplier dps", "multiplier must be one of columns, dsp, dsp_shifts, not 'dps'; did"),
        ("--multiplier dsp --verilog x.v", "--multiplier is of generated Verilog, not of a file"),
    ],
)
def test_multipliers_are_of_generated_verilog(generated, options, message):
    status, out, err = generated(options)
    assert (status, out) == (2, "") and err.startswith(f"error: {message}")


@pytest.mark.campaign
@pytest.mark.parametrize("check", ["all", "none"])
def test_a_prompt_in_blocks_reads_fewer_rows(run, model, check):
    """Tokens, evictions and writes are as with one token after the other."""
    results = []
    for block in (1, 5):
        status, out, err = run(
            f"generate --gguf {model} --prompt 'the a the a the a the' --tokens 3 --capacity 6"
            f" --json {SETTINGS} --set block={block} --check {check}"
        )
        assert (status, err) == (0, "")
        results.append(json.loads(out))
    alone, block = results
    for name in ("tokens", "evicted", "prompt_tokens", "text"):
        assert alone[name] == block[name]
    assert alone["bytes"]["kv_written"] == block["bytes"]["kv_written"]
    # Four tokens that do not vote, three that do, the last of which evicts; then two alone.
    row, seen = LAYERS * 2 * 2 * 8 * 2, (1, 2, 3, 4, 5, 6, 7, 7, 7)
    assert alone["prompt_tokens"] == 7 and all(len(evicted) == 3 for evicted in alone["evicted"])
    assert alone["bytes"]["kv_read"] == row * sum(seen)
    assert block["bytes"]["kv_read"] == row * (4 + 7 + 7 + 7)
    without = [n for n, count in enumerate(block["cycles_per_token"]) if count == 0]
    assert len(block["cycles_per_token"]) == len(seen) and without == [0, 1, 2, 4, 5]


@pytest.mark.campaign
def test_a_prompt_much_longer_than_the_cache(run, model):
    prompt = "the a a" + " the a" * 120
    status, out, _ = run(
        f"generate --gguf {model} --prompt '{prompt}' --tokens 4 --capacity {ROWS}"
        f" --json {SETTINGS}"
    )
    result = json.loads(out)
    llama, tokenizer, _ = open_model(model)
    attentions = bit_exact(llama)
    tokens = generate_in_numpy(llama, tokenizer.encode(prompt), 4, attentions)
    assert status == 0 and result["prompt_tokens"] == 243 and result["tokens"] == tokens
    assert result["evicted"] == [attention.evicted for attention in attentions]
    assert len(result["evicted"][0]) == result["prompt_tokens"] + 3 - ROWS


def test_both_blocks_need_a_name_before_each_setting(run, model):
    status, out, err = run(
        f"generate --gguf {model} --linear kllm.kllm_core --set rows=2 --capacity {ROWS}"
    )
    assert status == 2 and out == ""
    assert err.splitlines()[-1] == (
        "error: set must name its block, as veda.veda_core.NAME=VALUE, not 'rows=2'"
    )


def test_a_step_that_takes_a_cycle_less_is_located(monkeypatch, generated):
    formula = VedaCoreParameters.cycles

    def more(self, steps, **options):
        return formula(self, steps, **options) + (len(steps) > 1)

    monkeypatch.setattr(VedaCoreParameters, "cycles", more)
    status, out, err = generated("--threads 1")
    assert (status, out) == (1, "")
    found = re.fullmatch(
        r"error: veda.veda_core, layer 0, token 1: "
        r"took (\d+) cycles where the formula says (\d+)\n",
        err,
    )
    assert found and int(found[2]) == int(found[1]) + 1
    # With a slow memory, cycles are compared with nothing.
    assert generated("--memory latency=9")[0] == 0


def test_without_evictions_it_says_what_dense_attention_says(generated):
    status, out, _ = generated("--capacity 31 --memory latency=1..9,order=any")
    result = json.loads(out)
    assert status == 0 and result["evicted"] == [[]] * LAYERS
    assert result["memory"] == "latency=1..9,order=any,interval=1,seed=0"
    assert (result["prompt"], result["capacity"], result["threads"]) == (PROMPT, 31, 2)
    assert result["threshold"] is None and result["top_k"] is None and result["verilog"] == []
    last = result["cycles_per_token"][-1]
    rate = f"{1e9 / last:,.0f} steps of attention of all layers a second at 1 GHz"
    assert f"{rate}, without the model's other work; memory {result['memory']}." in summary(result)
    assert result["first_difference"] is None and result["text"] == result["reference_text"]


def test_what_the_rtl_gives_goes_on_where_nothing_is_compared(generated):
    checked, alone = (json.loads(generated(o)[1]) for o in ("", "--check none --threads 1"))
    assert alone["bits_compared"] == 0 and "compared with nothing" in summary(alone)
    for key in ("tokens", "evicted", "cycles_per_token", "bytes"):
        assert checked[key] == alone[key]


def test_text_and_progress_are_lines_of_their_own_in_one_file(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setattr(sys, "stderr", file)
    tokenizer = types.SimpleNamespace(decode=lambda tokens: "The old")
    with contextlib.suppress(Difference), Teller() as teller:
        teller.status("compiling …")
        teller.begin(types.SimpleNamespace(prompt=[1, 2], tokenizer=tokenizer))
        teller.status("prompt of 2 tokens: 50 % …")
        for text in ("The old clock", "The old clockmaker"):
            teller.piece(Step(0, [7], 1, 0, 0.0, 0.0), text)
        raise Difference("a.b", 0, 0, "no")
    assert file.getvalue().splitlines() == [
        "compiling …",
        "prompt of 2 tokens …",
        "prompt of 2 tokens: 50 % …",
        "The old clockmaker",
    ]


def test_on_a_terminal_nothing_compared_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    teller = Teller()
    for bits, said in ((0, "nothing compared"), (9, "RTL = model: 9 bits")):
        teller.piece(Step(0, [7], 1, bits, 0.0, 0.0), "a")
        assert f", {said}, " in capsys.readouterr().err


def test_trace_of_a_run(generated, tmp_path):
    path = tmp_path / "run.npz"
    status, out, _ = generated(f"--trace-out {path}")
    result = json.loads(out)
    steps = result["prompt_tokens"] + TOKENS - 1
    trace = load(path)  # as `sim run --trace` does
    assert status == 0 and trace.q.shape == (LAYERS, 4, steps, 8)
    assert trace.k.shape == (LAYERS, 2, steps, 8)
    assert trace.meta["text"] == result["text"]
    with np.load(path) as file:
        run = {name[4:]: file[name] for name in file.files if name.startswith("run/")}
    assert run["cycles"].sum(0).tolist() == result["cycles_per_token"]
    evicted = run["evicted"][:, 0]
    assert [[n for n in of if n >= 0] for of in evicted.tolist()] == result["evicted"]
    for layer in range(LAYERS):
        for token in range(steps):
            held = set(run["positions"][layer, 0, token].tolist()) - {-1}
            assert held == {*range(token + 1)} - {*evicted[layer, : token + 1].tolist()}
    assert ((run["votes"] >= 0) == (run["positions"] >= 0)).all() and run["votes"].max() > 0
    # The outputs are attention over the rows that were held when they were made.
    q, k, v = (x[1].astype(np.float64) for x in (trace.q, trace.k, trace.v))
    held = sorted({*run["positions"][1, 0, -2].tolist(), steps - 1} - {-1})
    scores = attention_scores(q[:, -1:].swapaxes(0, 1)[0], k[:, held], trace.scale)
    exact = weighted_sum(softmax(scores), v[:, held])
    np.testing.assert_allclose(run["o"][1, :, -1], exact, atol=2e-2)


def faulty(tmp_path, model, pattern: str, instead: str):
    """The core's Verilog with one change."""
    default = engine.parameters(open_model(model)[0].config, ROWS)
    parameters = dataclasses.replace(default, **SMALL)
    made = export(find("veda.veda_core"), parameters)
    text, count = re.subn(pattern, instead, made.verilog, count=1)
    assert count == 1, f"the Verilog has no {pattern}"
    path = tmp_path / "faulty.v"
    path.write_text(text)
    return path


@pytest.mark.campaign
def test_a_fault_in_the_rtl_ends_the_text_and_is_located(generated, model, tmp_path):
    """The engine keeps the row with the most votes and drops that with the fewest."""
    path = faulty(tmp_path, model, r"(wire less = \{.*?\}) < ", r"\1 > ")
    status, out, err = generated(f"--verilog {path}")
    assert status == 1 and out == ""
    assert re.match(
        r"error: veda.veda_core, layer 0, token \d+: transaction 0, stream \w+, beat \d+, "
        r"field [\w\[\]]+, cycle \d+: expected \d+, got \d+",
        err,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--prompt the" + "e" * 250,
            f"position_bits must be at least 9 for {251 + TOKENS} tokens, not 8",
        ),
        (
            "--attention kllm.orizuru",
            f"attention must be one of {', '.join(ATTENTION)}, none, not",
        ),
        (
            "--linear topick.topick_core",
            "linear must be one of kllm.kllm_core, veda.veda_core, lad.lad_tile, none, not",
        ),
        ("--attention none --trace-out t.npz", "--trace-out: it needs a block for --attention"),
        ("--trace-out no/t.npz", "output no/t.npz: the folder no does not exist"),
        ("--verilog a.v --verilog b.v", "verilog must be one file for veda.veda_core, not 2"),
        ("--set heads=3", "heads must be at least 4, not 3"),
        ("--set kv_heads=1", "kv_heads must be at least 2, not 1"),
        ("--set arrays=1", "rows times columns times arrays must be at least the head size, 8"),
        ("--set capacity=4", "capacity must be more than the 6 rows kept, not 4"),
        ("--tokens 512", "prompt and tokens must be at most the model's context, 512, not"),
        ("--memory latency=0", "latency must be the shortest and the longest number of cycles"),
        ("--memory latency=1..99999999999", "latency must be at most 10000 cycles, not 99999"),
        ("--memory interval=10001", "interval must be between 1 and 10000 cycles, not 10001"),
        ("--set lad.lad_tile.d=8", "set must name a block of the run, veda.veda_core, not 'lad."),
        ("--set veda.veda_cor.d=8", "set must name a block of the run, veda.veda_core, not 'veda."),
        ("--verilog lad.lad_tile=x.v", "verilog must name a block of the run, veda.veda_core, not"),
    ],
)
def test_refusals(generated, options, message):
    status, out, err = generated(options)
    assert status == 2 and out == "" and err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_progress_is_text_on_standard_output(run, model):
    status, out, err = run(
        f"generate --gguf {model} --prompt '{PROMPT}' --tokens 3 --capacity 6 {SETTINGS}"
    )
    assert status == 0 and out.startswith(PROMPT)
    assert all(line.endswith("…") for line in err.splitlines())
    assert "output bits of the RTL equal the bit-exact model's, 0 differ." in out
