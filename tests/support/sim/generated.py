"""Text by ``sim generate`` on a small model, and faults that must end it."""

import json
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from golden.algorithms.attention import attention_scores, softmax, weighted_sum
from sim.drivers.harness.session import Session
from tests.support.lm.tiny_llama import SIZES, random_tensors, write_gguf
from tests.support.mutant_file import MutantFile

PROMPT = "the a the"
TOKENS = 14
COUNT = 8
"""Number of mutants of a sub-block."""
FOUND = 4
"""Number of them that must be found at least, where a test states no other."""

Run = Callable[..., tuple[int, str, str]]
"""Runs ``sim generate`` with more options; returns status, standard output and standard error."""


def write_llama(folder, **sizes: int):
    """A random Llama of three layers with four heads of eight elements, two kv heads; its path.

    sizes
        In place of these.
    """
    chosen = SIZES | {"heads": 4, "dim": 32, "context": 512} | sizes
    return write_gguf(folder / "tiny.gguf", random_tensors(sizes=chosen), sizes=chosen)


def attention_command(model, block: str, options: str) -> str:
    """The command that continues the prompt, or the options', with attention by a block."""
    prompt = "" if "--prompt" in options else f"--prompt '{PROMPT}'"
    return (
        f"generate --gguf {model} {prompt} --tokens {TOKENS} --json --attention {block} {options}"
    )


def result_of(generated: Run, options: str = "") -> dict:
    """What a command that succeeds tells."""
    status, out, err = generated(options)
    assert (status, err) == (0, ""), err
    return json.loads(out)


def require_dense(o, q, k, v, atol: float, scale: float | None = None) -> None:
    """Outputs [head, token, d] are about those of dense attention on the tokens so far."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    for token in range(q.shape[1]):
        scores = attention_scores(q[:, token], k[:, : token + 1], scale)
        exact = weighted_sum(softmax(scores), v[:, : token + 1])
        np.testing.assert_allclose(o[:, token], exact, atol=atol)


def upset_memory(
    monkeypatch: pytest.MonkeyPatch, layer: int, step: int, upset: Callable[[Session], None]
) -> None:
    """Let `upset` change a layer's memories before one of its steps, both counted from 0."""
    sessions: list[Session] = []  # one a layer, in their order
    steps: Counter[int] = Counter()
    begin, go_on = Session.__init__, Session.step

    def begin_and_note(self, *arguments, **options):
        begin(self, *arguments, **options)
        sessions.append(self)

    def go_on_after_upset(self, *arguments, **options):
        number = sessions.index(self)
        if (number, steps[number]) == (layer, step):
            upset(self)
        steps[number] += 1
        return go_on(self, *arguments, **options)

    monkeypatch.setattr(Session, "__init__", begin_and_note)
    monkeypatch.setattr(Session, "step", go_on_after_upset)


def require_mutants_found(
    generated: Run, file: MutantFile, block: str, instance: str, options: str = "", least=FOUND
) -> None:
    """`least` of a sub-block's mutants end the text, with a message that names layer and token.

    `file` must be in the present folder. Mutants after those are not run.
    """
    found = 0
    for mutant in file.mutants[instance]:
        file.select(mutant.number)
        status, out, err = generated(f"{options} --verilog {file.path} --trust")
        if status == 0:  # these data do not excite it, or all that is compared agrees
            continue
        assert (status, out) == (1, "") and err.count("\n") == 1, mutant
        assert re.match(rf"error: {re.escape(block)}, layer \d, token \d+: ", err), err
        found += 1
        if found == least:
            return
    pytest.fail(f"{found} of {COUNT} mutants of {instance or block} are found, not {least}")
