"""Several texts continued together: each is as alone, and matrices are read once for all."""

import dataclasses
import json

import pytest

from golden.algorithms.attention import DenseAttention
from golden.algorithms.veda.voting import VotingAttention
from golden.lm.commands import open_model
from golden.lm.model import generate as generate_in_numpy
from golden.lm.weights import matrix_shapes
from hw.kllm.kllm_core import KllmCoreParameters
from sim.commands.engines.kllm.kllm_core import engine, words_of_matrix
from tests.support.sim.commands import one_sentence

PROMPTS = ("the a the", "a", "the the")
TOKENS, ROWS, LAYERS = 5, 6, 3
VEDA = {"rows": 2, "columns": 2, "arrays": 2, "capacity": 32, "depth": 16}
VEDA |= {"position_bits": 8, "count_bits": 4, "contexts": LAYERS}
KLLM = dataclasses.replace(KllmCoreParameters.preset("first"), vector_lanes=3, rotary_pairs=8)


def command(prompts, options: str) -> str:
    texts = " ".join(f"--prompt '{prompt}'" for prompt in prompts)
    return f"generate {texts} --tokens {TOKENS} --capacity {ROWS} --json {options}"


def settings(values: dict) -> str:
    return " ".join(f"--set {name}={value}" for name, value in values.items())


@pytest.mark.campaign
def test_attention_of_each_text(run, model):
    """Each text is as alone, on every bit, in the cycles of all alone; lengths differ."""
    options = f"--gguf {model} {settings(VEDA)}"
    status, out, err = run(command(PROMPTS, options))
    assert (status, err) == (0, "")
    result = json.loads(out)
    llama, tokenizer, _ = open_model(model)
    cycles = bits = 0
    for number, prompt in enumerate(PROMPTS):
        tokens = tokenizer.encode(prompt)
        assert result["prompt_tokens"][number] == len(tokens)
        attentions = [
            VotingAttention(ROWS, 4, protect_reserved=True, bit_exact=True, rows=32)
            for _ in range(llama.config.layers)
        ]
        made = generate_in_numpy(llama, tokens, TOKENS, attentions)
        assert result["tokens"][number] == made
        assert result["texts"][number] == tokenizer.decode(made)
        status, out, _ = run(command([prompt], options))
        alone = json.loads(out)
        assert alone["tokens"] == made
        assert alone["first_difference"] == result["first_differences"][number]
        cycles, bits = cycles + alone["cycles"], bits + alone["bits_compared"]
    assert (
        result["cycles"] == cycles == sum(result["cycles_of_prompts"] + result["cycles_of_steps"])
    )
    assert result["bits_compared"] == bits and result["texts_of_steps"] == [3] * (TOKENS - 1)


@pytest.mark.campaign
@pytest.mark.parametrize("check", ["all", "none"])
def test_products_are_shared(run, model, tmp_path, monkeypatch, check):
    """Four texts share the reads of a matrix, a fifth does not; each is as the model says."""
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path))
    llama, tokenizer, about = open_model(model)
    quantised = engine.quantise(llama, tokenizer, about, KLLM)
    prompts = (*PROMPTS, "a a", "the")
    fields = settings(dataclasses.asdict(KLLM))
    options = f"--gguf {model} --attention none --linear kllm.kllm_core {fields} --check {check}"
    status, out, err = run(command(prompts, options))
    assert (status, err) == (0, "")
    result = json.loads(out)
    for prompt, made in zip(prompts, result["tokens"], strict=True):
        tokens = tokenizer.encode(prompt)
        dense = [DenseAttention() for _ in range(llama.config.layers)]
        expected, new, start = [], tokens, 0
        for _ in range(TOKENS):
            hidden = quantised.hidden(new, dense, start=start)
            start, new = start + len(new), [int(quantised.logits(hidden[-1:]).argmax())]
            expected += new
        assert made == expected
    c = llama.config
    words = sum(words_of_matrix(KLLM, *shape) for shape in matrix_shapes(c).values())
    head = words_of_matrix(KLLM, c.dim, c.vocab)
    reads = sum(-(-len(tokenizer.encode(prompt)) // KLLM.vectors) for prompt in prompts)
    steps = (TOKENS - 1) * 2
    read = (reads + steps) * c.layers * words + (len(prompts) + steps) * head
    assert result["bytes"] == {"weights_read": read * KLLM.lanes * KLLM.segment * 4 // 8}
    assert (result["bits_compared"] > 0) == (check == "all")


@pytest.mark.campaign
def test_for_people(run, model):
    line = command(PROMPTS[:2], f"--gguf {model} {settings(VEDA)}").replace("--json", "")
    status, out, err = run(line)
    assert status == 0 and "2 prompts of " in err and " cycles for 2 texts, " in err
    assert out.startswith(PROMPTS[0]) and f"\n\n{PROMPTS[1]}" in out
    assert "output bits of the RTL equal the bit-exact model's, 0 differ." in out
    assert "cycles a token in the steps" in out and "of 2 texts differ from" in out


@pytest.mark.parametrize(
    "options, sentence",
    [
        ("--linear veda.veda_core", "attention must be another block than veda.veda_core, or none"),
        ("--trace-out t.npz", "--trace-out goes with one prompt alone"),
        ("--board simulated", "board must be left out where there are several prompts"),
        ("--chat a", "argument --chat: not allowed with argument --prompt"),
    ],
)
def test_refusals(run, model, options, sentence):
    status, out, err = run(command(PROMPTS, f"--gguf {model} {settings(VEDA)} {options}"))
    assert status == 2 and out == "" and sentence in one_sentence(err.splitlines()[0])


def test_the_demo_tells_one(run):
    status, out, err = run("demo --prompt a --prompt b")
    assert (status, out) == (2, "") and "the demo tells one text" in one_sentence(err)
