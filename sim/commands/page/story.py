"""What the page shows of a text that a language model made through RTL."""

import numpy as np


def shown(story) -> dict:
    """Sentences and numbers of a :class:`sim.commands.engines.speak.Story`, ready for JSON.

    ``data`` goes to the page's script. Its ``kept``, ``votes`` and ``evicted`` are of each layer,
    cache and token: positions in the cache after the token's step in ascending order, their votes
    (-1 without votes), and positions that left in that step.
    """
    result, record = story.result, story.record
    prompt, read = result["prompt_tokens"], len(result["cycles_per_token"])
    data: dict = {
        "pieces": story.pieces,
        "prompt": prompt,
        "cycles": result["cycles_per_token"],
        "blocks": list(result["blocks"]),
    }
    layers = 0
    if record is not None:
        layers = len(record.cycles)
        kept, votes = caches(record.positions, record.votes)
        data |= {
            "kept": kept,
            "votes": votes,
            "evicted": [
                [[[int(p)] if p >= 0 else [] for p in of] for of in layer]
                for layer in record.evicted
            ],
            "layer_cycles": record.cycles.tolist(),
        }
        if record.product_cycles is not None:
            data["product_cycles"] = record.product_cycles.sum(axis=0).tolist()
    different = result["first_difference"]
    return {
        "data": data,
        "bits": result["bits_compared"],
        "mismatches": result["mismatches"],
        "prompt": story.pieces[:prompt],
        "made": story.pieces[prompt:],
        "read": read,
        "layers": layers,
        "blocks": result["blocks"],
        "model": result["model"],
        "cycles": result["cycles"],
        "last": result["cycles_per_token"][-1],
        "rows_kept": result["rows_kept"],
        "evictions": sum(map(len, result["evicted"])),
        "reference": None if different is None else (different + 1, result["reference_text"]),
        "command": command(result),
    }


def caches(positions: np.ndarray, votes: np.ndarray) -> tuple[list, list]:
    """Positions in use in ascending order and their votes, ``[layer][cache][token]`` lists."""

    order = np.argsort(positions, axis=-1)
    used = np.take_along_axis(positions, order, axis=-1) >= 0

    def of(kind: np.ndarray) -> list:
        lists = np.empty(kind.shape[:-1], object)
        for index in np.ndindex(lists.shape):
            lists[index] = kind[index][order[index]][used[index]].tolist()
        return lists.tolist()

    return of(positions), of(votes)


def command(result: dict) -> str:
    """The command that a reader may begin with to make a new text."""
    return f"python -m sim generate --tokens {len(result['tokens'])}"
