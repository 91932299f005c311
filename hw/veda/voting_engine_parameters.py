"""Parameters of the voting engine: sizes, payloads, cycles (VEDA, section V)."""

import dataclasses
from functools import cached_property

from amaranth.hdl import unsigned
from amaranth.lib import data

from hw.attention.probability import FRACTION
from hw.layout import FLAG, FixedPoint, count, index, position
from hw.parameters import Parameters, require
from hw.veda.context_memory import context_index
from hw.veda.vote_threshold import WEIGHT_BITS, WEIGHT_FRACTION, VoteThresholdParameters


@dataclasses.dataclass(frozen=True)
class VotingEngineParameters(Parameters):
    """
    capacity
        Live slots, at most; 2 or more.
    heads
        Heads, at most.
    position_bits
        Width of a token's position: a sequence has up to 2^position_bits tokens.
    count_bits
        Width of a slot's vote count, 1 to 16.
    contexts
        Number of sequences whose counts are kept side by side.
    block
        Number of tokens of a step, at most, whose scores are kept side by side.
    """

    capacity: int = 256
    heads: int = 9
    position_bits: int = 24
    count_bits: int = 16
    contexts: int = 1
    block: int = 1

    def __post_init__(self):
        require(self.capacity >= 2, "capacity must be at least 2", self.capacity)
        require(self.heads >= 1, "heads must be at least 1", self.heads)
        wide = 1 << self.position_bits >= self.capacity if self.position_bits >= 0 else False
        rule = f"position_bits must be at least {(self.capacity - 1).bit_length()}"
        require(wide, rule, self.position_bits)
        rule = "count_bits must be between 1 and 16"
        require(1 <= self.count_bits <= 16, rule, self.count_bits)
        require(self.contexts >= 1, "contexts must be at least 1", self.contexts)
        rule = "block must be 1 to the capacity"
        require(1 <= self.block <= self.capacity, rule, self.block)

    @classmethod
    def presets(cls) -> dict[str, "VotingEngineParameters"]:
        return {
            "small": cls(capacity=8, heads=2, position_bits=6, count_bits=4, contexts=3),
            "prompts": cls(
                capacity=13, heads=2, position_bits=6, count_bits=4, contexts=2, block=3
            ),
            "default": cls(),
            "paper": cls(capacity=4096, heads=32),
        }

    @cached_property
    def threshold(self) -> VoteThresholdParameters:
        score = self.heads << FRACTION
        # A block's scores are added to S1 when they are complete.
        addend_bits = score.bit_length() if self.block > 1 else FRACTION + 1
        return VoteThresholdParameters(self.capacity, addend_bits, score)

    @property
    def latency(self) -> int:
        """Cycles from a step's last probability to its report, with no vote and no eviction."""
        return self.PASS_CYCLES + 1

    @property
    def idle_bound(self) -> int:
        """The threshold and a pass over all slots."""
        return self.step_cycles(self.capacity, 0, True, 0)

    PASS_CYCLES = 4
    """Cycles from the last slot of a pass through the slots to its end."""

    def step_cycles(
        self, length: int, heads: int, votes: bool | tuple[bool, ...], evictions: int
    ) -> int:
        """Cycles of a step with `length` slots live, the new ones included, without stalls.

        votes, evictions
            Whether it casts votes, of a block for each token; number of slots that it evicts.
        """
        if isinstance(votes, tuple):
            return self._block_cycles(length, heads, votes, evictions)
        passes = max(int(votes), evictions)
        return (
            2
            + heads * length
            + self.PASS_CYCLES
            + votes * self.threshold.latency
            + sum(length - number + self.PASS_CYCLES for number in range(passes))
            + evictions
            + max(1, evictions)
        )

    def _block_cycles(
        self, length: int, heads: int, votes: tuple[bool, ...], evictions: int
    ) -> int:
        tokens = len(votes)
        if tokens == 1:
            return self.step_cycles(length, heads, bool(votes[0]), evictions)
        lengths = range(length - tokens + 1, length + 1)
        cycles = 1 + tokens + heads * sum(lengths) + self.PASS_CYCLES - 1
        for token, (slots, vote) in enumerate(zip(lengths, votes, strict=True)):
            # The scores' sums, then votes and evictions as after a single token.
            survey = slots + self.PASS_CYCLES if vote else 0
            number = evictions if token == tokens - 1 else 0
            after = self.step_cycles(slots, 0, bool(vote), number) - 2 - self.PASS_CYCLES
            cycles += 1 + survey + after
        return cycles

    @cached_property
    def state_layout(self) -> data.StructLayout:
        """A slot's ``count`` and ``position``; ``length`` and next ``token`` of a sequence."""
        slot = {"count": self.count_bits, "position": self.position_bits}
        sequence = {"length": range(self.capacity + 1), "token": self.position_bits}
        return data.StructLayout(slot | sequence)

    @cached_property
    def command_layout(self) -> data.StructLayout:
        """What a step does.

        ``restart`` a new sequence; ``vote`` cast votes; ``evict`` while more than ``target`` slots
        are live; ``protected`` positions below it are evicted last; ``a``, ``b`` the weights of
        mean and deviation; ``heads``, where 0 means 1; ``context`` of the sequence, which exists;
        ``tokens`` if there may be several, where 0 means 1 and for which there are slots.
        """
        weight = FixedPoint(unsigned(WEIGHT_BITS), WEIGHT_FRACTION)
        return data.StructLayout(
            {
                "restart": FLAG,
                "vote": FLAG,
                "evict": FLAG,
                "target": count(range(self.capacity + 1)),
                "protected": position(self.position_bits),
                "a": weight,
                "b": weight,
                "heads": count(range(self.heads + 1)),
                "context": context_index(self.contexts),
            }
            | ({"tokens": count(range(self.block + 1))} if self.block > 1 else {})
        )

    @cached_property
    def report_layout(self) -> data.StructLayout:
        """What a step did; a block has a report for each token.

        ``evict`` a slot was evicted: ``slot``, with the ``position`` of its token, else both 0;
        ``length`` slots are live now, without a block's later tokens; ``invalid`` if one of the
        token's probabilities was; ``last`` on the step's last report; ``context`` as in the
        command.
        """
        return data.StructLayout(
            {
                "evict": FLAG,
                "slot": index(range(self.capacity)),
                "position": position(self.position_bits),
                "length": count(range(self.capacity + 1)),
                "invalid": FLAG,
                "last": FLAG,
                "context": context_index(self.contexts),
            }
        )
