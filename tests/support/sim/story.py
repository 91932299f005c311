"""A made-up text through RTL, for tests of the page that shows one."""

import types

import numpy as np

TEXT = (
    "One crane, two <b>cranes</b> & three “cranes”: 三羽 fold\nthe paper again and again "
    "until a thousand"
)


def story(layers: int = 3, caches: int = 2, rows: int = 5):
    """What :class:`sim.commands.engines.speak.Story` holds, with evictions at random."""
    words = TEXT.split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    prompt, read = 4, len(pieces) - 1
    rng = np.random.default_rng(1)
    shape = (layers, caches, read, rows)
    positions, votes = np.full(shape, -1), np.full(shape, -1)
    evicted = np.full(shape[:-1], -1)
    for layer, cache in np.ndindex(layers, caches):
        slots: list[int] = []
        for token in range(read):
            if len(slots) == rows:
                slot = int(rng.integers(1, rows))
                evicted[layer, cache, token] = slots[slot]
                slots[slot] = token
            else:
                slots.append(token)
            positions[layer, cache, token, : len(slots)] = slots
            votes[layer, cache, token, : len(slots)] = rng.integers(0, 9, len(slots))
    cycles = 100 + np.arange(layers)[:, None] + np.minimum(np.arange(read), rows) * 20
    result = {
        "text": "".join(pieces[prompt:]),
        "prompt_tokens": prompt,
        "tokens": list(range(len(pieces) - prompt)),
        "mismatches": 0,
        "bits_compared": 1234567,
        "cycles": int(cycles.sum()),
        "cycles_per_token": cycles.sum(axis=0).tolist(),
        "rows_kept": rows,
        "evicted": [[int(p) for p in layer.ravel() if p >= 0] for layer in evicted],
        "reference_text": "<i>something else</i>",
        "first_difference": 3,
        "model": "tiny.gguf",
        "check": "all",
        "blocks": {"veda.veda_core": {}},
    }
    record = types.SimpleNamespace(
        positions=positions,
        votes=votes,
        evicted=evicted,
        cycles=cycles,
        product_cycles=np.tile([30, 10, 40, 20], (layers, read, 1)),
    )
    return types.SimpleNamespace(result=result, record=record, pieces=pieces)
