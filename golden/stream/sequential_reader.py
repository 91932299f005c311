"""Twin of the sequential reader: which words come out, and when."""

import numpy as np


def addresses(start: np.ndarray, words: np.ndarray, width: int) -> tuple[np.ndarray, ...]:
    """The words that commands read: address, number of the command, whether its last, in order.

    ``start`` and ``words`` are integers, one for each command; addresses have `width` bits.
    """
    start, words = np.asarray(start, np.int64), np.asarray(words, np.int64)
    command = np.repeat(np.arange(len(words)), words)
    place = np.arange(len(command)) - np.repeat(np.cumsum(words) - words, words)
    return start[command] + place & (1 << width) - 1, command, place == words[command] - 1


def timeline(latency: np.ndarray, depth: int) -> tuple[np.ndarray, ...]:
    """When the words of one long command are asked for, answered and passed on, if nothing stalls.

    ``latency[words]`` is the memory's, from each request to its response. Cycles count from the
    command's.
    """
    asked, answered, given = np.zeros((3, len(latency)), np.int64)
    for word, cycles in enumerate(latency):
        free = given[word - depth] if word >= depth else 0
        asked[word] = max(asked[word - 1] + 1 if word else 1, free)
        answered[word] = asked[word] + cycles
        given[word] = max(answered[word] + 2, given[word - 1] + 1 if word else 0)
    return asked, answered, given
