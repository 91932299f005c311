"""Perplexity of the tokens after a prompt, for many policies that leave the prompt dense.

The model runs once over each window's prompt with dense attention. Each policy then gets the
prompt's queries, keys and values of every layer, and the model goes on from there with that policy:
all policies predict the same tokens after the same prompt, in a tenth of the time.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from tqdm import tqdm

from golden.algorithms.baselines import rope_of
from golden.evaluation.policies import Policy, parse
from golden.lm.model import Llama
from golden.lm.weights import Weights

_SEEDS_OF_A_WINDOW = 1000


@dataclasses.dataclass(frozen=True)
class Scores:
    """One policy's results, window by window.

    losses
        Mean negative log-likelihood of each window's generated tokens.
    rows
        Tokens held in the cache at the end, averaged over windows, layers and kv heads.
    """

    losses: tuple[float, ...]
    rows: float

    @property
    def perplexity(self) -> float:
        """Perplexity of all tokens; windows are of equal length."""
        return float(np.exp(np.mean(self.losses)))

    def over(self, other: "Scores") -> tuple[float, float]:
        """Perplexity against `other`'s on the same windows: the ratio and its standard error.

        Paired by window, so that it does not count how much harder one window is than another.
        """
        differences = np.subtract(self.losses, other.losses)
        ratio = float(np.exp(differences.mean()))
        if len(differences) < 2:
            return ratio, float("nan")
        return ratio, float(ratio * differences.std(ddof=1) / np.sqrt(len(differences)))


def cut(tokens: Sequence[int], prompt: int, generated: int, stride: int, most: int) -> list:
    """Windows of a prompt and some generated tokens, `stride` tokens apart, `most` of them."""
    length = prompt + generated
    starts = range(0, len(tokens) - length + 1, stride)
    return [tokens[start : start + length] for start in starts[:most]]


def score(
    model: Llama,
    windows: Sequence[Sequence[int]],
    prompt: int,
    policies: Iterable[str],
    progress: str,
) -> dict[str, Scores]:
    """Scores of the policies, given as text, by that text.

    Policies with a `seed` that the text does not give get another one in each window and layer.
    """
    parsed = {text: parse(text, prompt=prompt) for text in policies}
    model = _held(model)
    found: dict[str, list[tuple[float, float]]] = {text: [] for text in parsed}
    with tqdm(total=len(windows) * len(parsed), desc=progress, unit="run", disable=None) as bar:
        for number, tokens in enumerate(windows):
            inputs: list[dict[str, np.ndarray]] = [{} for _ in range(model.config.layers)]

            def observer(layer: int, name: str, array: np.ndarray, inputs=inputs) -> None:
                if name in "qkv":
                    inputs[layer][name] = array

            last = model.hidden(tokens[:prompt], observer=observer)[-1:]
            for text, policy in parsed.items():
                first_seed = number * _SEEDS_OF_A_WINDOW
                found[text].append(_run(policy, model, tokens, prompt, inputs, last, first_seed))
                bar.update()
    return {
        text: Scores(tuple(loss for loss, _ in of), float(np.mean([rows for _, rows in of])))
        for text, of in found.items()
    }


def _run(
    policy: Policy, model: Llama, tokens, prompt: int, inputs, last: np.ndarray, first_seed: int
) -> tuple[float, float]:
    """Mean loss of the tokens after the prompt, and rows held by a kv head."""
    options = {"prompt": prompt, "seed": first_seed, "rope": rope_of(model)}
    attentions = model.attentions(lambda layers: policy.attentions(layers, **options))
    for attention, seen in zip(attentions, inputs, strict=True):
        attention.sequence(seen["q"], seen["k"], seen["v"])
    # The last token is fed too, so that the cache holds it, and predicts nothing.
    hidden = model.hidden(tokens[prompt:], attentions, start=prompt)
    logits = model.logits(np.concatenate([last, hidden[:-1]])).astype(np.float64)
    targets = np.asarray(tokens[prompt:])
    top = logits.max(axis=-1)
    total = np.log(np.exp(logits - top[:, None]).sum(axis=-1)) + top
    loss = float(np.mean(total - logits[np.arange(len(targets)), targets]))
    rows = np.mean([attention.rows for attention in attentions]) / model.config.kv_heads
    return loss, float(rows)


def _held(model: Llama) -> Llama:
    """The model with all its layers in memory, four bytes a weight."""
    w = model.weights
    layers = [w.layers[index] for index in range(model.config.layers)]
    return Llama(Weights(w.config, w.embedding, layers, w.norm, w.output, w.rope_factors))
