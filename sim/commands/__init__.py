"""The commands of `python -m sim`, one module each."""
