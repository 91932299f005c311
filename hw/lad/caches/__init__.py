"""Caches of a head: their rows from and to memory, and the update of their columns."""
