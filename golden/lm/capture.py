"""Traces of a model that runs on a text."""

from collections.abc import Sequence

import numpy as np

from golden.lm.model import Llama
from golden.trace import Trace


def capture(
    model: Llama,
    tokens: Sequence[int],
    layers: Sequence[int],
    *,
    activations: int,
    columns: int,
    meta: dict,
    progress: bool = False,
) -> Trace:
    """Run ``model`` over ``tokens`` and keep the inputs of the given ``layers``.

    ``q``, ``k``, ``v`` hold every head and token. ``x/layerL.attn`` are the activations that Wq, Wk
    and Wv multiply and ``x/layerL.down`` the inputs of the FFN's down projection, for the first
    ``activations`` tokens. ``w/layerL.attn`` and ``w/layerL.down`` are ``columns`` columns of those
    weights, evenly spread over [Wq Wk Wv] side by side and over Wdown; none when ``columns`` or
    ``activations`` is 0. Arrays are float16 where their values fit, else float32. ``meta`` is kept
    with ``layers``, ``tokens`` (their count) and ``columns`` added.
    """
    seen: dict[tuple[int, str], np.ndarray] = {}

    def observer(layer: int, name: str, array: np.ndarray) -> None:
        if layer in layers:
            seen[layer, name] = _compact(array if name in "qkv" else array[:activations])

    model.hidden(tokens, observer=observer, progress="layers" if progress else None)
    x, w = {}, {}
    if activations and columns:
        for layer in layers:
            held = model.weights.layers[layer]
            matrices = {"attn": np.hstack([held.wq, held.wk, held.wv]), "down": held.down}
            for name, matrix in matrices.items():
                x[f"layer{layer}.{name}"] = seen[layer, name]
                spread = np.linspace(0, matrix.shape[1] - 1, min(columns, matrix.shape[1]))
                w[f"layer{layer}.{name}"] = _compact(matrix[:, spread.round().astype(int)])
    q, k, v = (np.stack([seen[layer, name] for layer in layers]) for name in "qkv")
    scale = 1 / np.sqrt(model.config.d)
    about = {"layers": list(layers), "tokens": len(tokens), "columns": columns if x else 0}
    return Trace(q, k, v, scale, x, w, meta | about)


def _compact(array: np.ndarray) -> np.ndarray:
    fits = np.abs(array).max(initial=0) < np.finfo(np.float16).max
    return array.astype(np.float16 if fits else np.float32)
