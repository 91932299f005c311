"""Engines on VEDA's core: attention, and matrix products with norms, of a language model."""

from sim.commands.engines.veda.attention import VedaEngine
from sim.commands.engines.veda.products import VedaProducts

engine, products = VedaEngine(), VedaProducts()
