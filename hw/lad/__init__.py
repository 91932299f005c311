"""Blocks of LAD, locality aware decoding."""
