"""Cycles of LAD's tile and of several tiles, cycle by cycle, where nothing stalls.

Only what decides the cycles is here: who requests, what has arrived, what waits. Numbers come from
the bit-exact model: which positions are active, and so on (:mod:`golden.lad.timing.work`).
"""
