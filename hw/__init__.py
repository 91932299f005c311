"""Amaranth generators: what gets built. `python -m hw --help` lists what they offer."""
