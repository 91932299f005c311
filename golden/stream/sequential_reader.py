"""Model of the sequential reader: the words that it outputs, and their cycles."""

import numpy as np


def addresses(start: np.ndarray, words: np.ndarray, width: int) -> tuple[np.ndarray, ...]:
    """Returns (address, number of the command, last of its command) of each word, in order.

    start, words
        Address of the first word and number of words of each command.
    width
        Bits of an address.
    """
    start, words = np.asarray(start, np.int64), np.asarray(words, np.int64)
    command = np.repeat(np.arange(len(words)), words)
    position = np.arange(len(command)) - np.repeat(np.cumsum(words) - words, words)
    address = start[command] + position & (1 << width) - 1
    return address, command, position == words[command] - 1


def timeline(latency: np.ndarray, depth: int) -> tuple[np.ndarray, ...]:
    """Cycles in which the words of one long command are requested, answered and output.

    latency
        ``int[words]``, the memory's, from each request to its response.

    Cycle 0 is the command's. Nothing stalls.
    """
    requested, answered, output = np.zeros((3, len(latency)), np.int64)
    for word, cycles in enumerate(latency):
        free = output[word - depth] if word >= depth else 0
        requested[word] = max(requested[word - 1] + 1 if word else 1, free)
        answered[word] = requested[word] + cycles
        output[word] = max(answered[word] + 2, output[word - 1] + 1 if word else 0)
    return requested, answered, output
