"""Engines on KLLM's blocks."""
