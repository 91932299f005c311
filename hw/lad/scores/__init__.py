"""Scores of a head: estimates of all, exact ones of some, and the largest."""
