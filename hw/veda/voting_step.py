"""What the voting engine keeps of its sequence and of the step in progress."""

from typing import Any

from amaranth.hdl import Signal
from amaranth.lib import data


class VotingStep:
    """State of the sequence, then of the step and of the pass through the slots.

    command
        What the step is to do.
    length, full
        Number of live slots, and whether there are no others.
    token
        Number of tokens so far: the next one's position.
    slot, next_slot, last_slot
        The next one of the pass, the one after it, and whether it is the last.
    heads_left, first_head, final_head
        Number of heads still to be summed, and whether the present one is the first or the last.
    invalid, is_invalid
        One of the probabilities of each token was; of token `number`.
    evicting, evicted
        A slot is to be evicted; the step's last report is of an eviction.
    counting, voting
        Votes are counted, else scores are summed; slots below the threshold get votes.
    busy
        Slots are in the pipeline.
    number, last_token
        Token of the block, and whether it is its last.
    first_length
        Live slots with the block's first token alone.
    surveying
        The sums over the scores of a block's token are made, or were.
    """

    def __init__(
        self, layout: data.StructLayout, capacity: int, heads: int, position_bits: int, block: int
    ):
        self.command: Any = Signal(layout, reset_less=True)
        self.length = Signal(range(capacity + 1))
        self.token = Signal(position_bits)
        self.slot = Signal(range(capacity))
        self.next_slot = Signal(range(capacity + 1))
        self.last_slot = Signal()
        self.heads_left = Signal(range(heads + 1), reset_less=True)
        self.first_head = Signal(reset_less=True)
        self.final_head = Signal()
        self.invalid = Signal(block, reset_less=True)
        self.full = Signal()
        self.evicting = Signal()
        self.evicted = Signal(reset_less=True)
        self.counting = Signal(reset_less=True)
        self.voting = Signal(reset_less=True)
        self.busy = Signal()
        # Of blocks alone.
        self.number = Signal(range(block))
        self.last_token = Signal()
        self.first_length = Signal.like(self.length, reset_less=True)
        self.surveying = Signal()
        self.is_invalid = Signal() if block > 1 else self.invalid
