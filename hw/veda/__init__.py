"""VEDA: attention with eviction by vote, on an array for inner and outer products."""
