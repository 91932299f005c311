"""VEDA's algorithm: voting-based eviction, in floating point."""

from golden.algorithms.veda.voting import VotingAttention, cast_votes, count_votes, slot_to_evict

__all__ = ["VotingAttention", "cast_votes", "count_votes", "slot_to_evict"]
