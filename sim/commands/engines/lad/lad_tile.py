"""Engines on LAD's tile: attention, and matrix products, of a language model."""

from sim.commands.engines.lad.attention import LadEngine
from sim.commands.engines.lad.products import LadProducts

engine, products = LadEngine(), LadProducts()
