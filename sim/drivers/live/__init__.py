"""Blocks that run in a page: their Verilog as WebAssembly, and the beats to compare with."""

from pathlib import Path

FOLDER = Path(__file__).parent
PAGE_FILES = ("live.css", "live.js")
"""What the page loads beside the blocks' files; the script comes after them."""
