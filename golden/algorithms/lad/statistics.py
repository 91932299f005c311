"""Counts of the locality aware attention, besides its traffic."""

from dataclasses import dataclass


@dataclass
class Statistics:
    """Sums over the steps of one layer; ``add`` joins layers.

    Positions are counted for each query head, rows once for each kv head: a row is needed when any
    query head of the group needs it.
    """

    steps: int = 0
    positions: int = 0
    """n, the new token's included, over query heads and steps."""
    active: int = 0
    """|J|, the window included."""
    hits: int = 0
    """|J and J'|: active already in the step before."""
    updates: int = 0
    """|U|, the position that leaves the window included."""
    false_negatives: int = 0
    """Identified as inactive, though the score less m is outside the mode's interval."""
    above: int = 0
    """Active with a score above m, which centres or codes may give too low."""
    rows: int = 0
    """Rows in view, as dense attention would read of K and of V."""
    centre_rows: int = 0
    """|C|."""
    large: int = 0
    """|M|, over query heads."""
    large_rows: int = 0
    """M without C: keys read only because of their large mode."""
    active_rows: int = 0
    new_rows: int = 0
    """J - J', fetched in the attention period when J' was prefetched, as in the paper."""
    stale_rows: int = 0
    """J' - J, prefetched without use."""
    refresh_rows: int = 0
    """Rows of K and of V read only to recompute the caches."""
    g_bytes: int = 0
    """Reads of G: norm, dnorm and cid (or a unit), mode with its counter."""
    counter_bytes: int = 0
    """Reads of the active positions' other counters."""
    cache_bytes: int = 0
    """Reads of the caches A to F."""

    @property
    def active_share(self) -> float:
        """|J| / n."""
        return self.active / self.positions

    @property
    def large_share(self) -> float:
        """|M| / n."""
        return self.large / self.positions

    @property
    def hit_ratio(self) -> float:
        """Share of the active positions that were active in the step before."""
        return self.hits / self.active

    @property
    def false_negative_share(self) -> float:
        """False negatives as a share of all positions."""
        return self.false_negatives / self.positions

    @property
    def side_bytes(self) -> int:
        """Reads of anything but K and V."""
        return self.g_bytes + self.counter_bytes + self.cache_bytes

    def add(self, other: "Statistics") -> None:
        """Add another counter's counts."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
