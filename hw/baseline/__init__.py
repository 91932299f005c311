"""Cores that a comparison needs: dense attention, and the eviction that papers compare with."""
