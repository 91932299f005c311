"""Amaranth generators: what gets built. `python -m hw --help` lists what they offer."""

HOME = __name__.removesuffix("hw")
"""What comes before the names of this package's modules: ``senbazuru.`` in an installed copy."""
