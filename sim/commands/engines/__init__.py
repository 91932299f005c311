"""Engines: a language model's attention or matrix products computed by a block's RTL.

The engine of ``veda.veda_core`` is ``engine`` in ``sim.commands.engines.veda.veda_core``. Every
output of the RTL is compared with the block's bit-exact model, and the first difference raises
:class:`sim.commands.engines.difference.Difference`.
"""

import importlib
from typing import TYPE_CHECKING

from hw.parameters import require_one_of
from sim.commands.engines import topick, tsuru, unicaim

if TYPE_CHECKING:
    from sim.commands.engines.attention import AttentionEngine
    from sim.commands.engines.protocol import ProductEngine

ATTENTION = (
    "veda.veda_core",
    "topick.topick_core",
    "lad.lad_tile",
    "lad.lad_system",
    "unicaim.unicaim_core",
    "kllm.kllm_core",
    "tsuru.tsuru_core",
    "baseline.dense_core",
    "baseline.h2o_core",
)
"""Blocks that compute a layer's attention."""
LINEAR = ("kllm.kllm_core", "veda.veda_core", "lad.lad_tile")
"""Blocks that compute a layer's matrix products."""
OPTIONS = (*topick.OPTIONS, *unicaim.OPTIONS, *tsuru.OPTIONS)
"""Options that engines add to the common ones."""
DEFAULT = ATTENTION[0]
"""The block of a layer's attention where none is named."""
NONE = "none"
"""In place of a block: NumPy computes that part, in float32."""


def attention_engine(block: str) -> "AttentionEngine | None":
    """The engine of a block, or None for "none".

    :raises ParameterError: if the block computes no attention.
    """
    return _engine("attention", block, ATTENTION)


def linear_engine(block: str) -> "ProductEngine | None":
    """The engine of a block, or None for "none".

    :raises ParameterError: if the block computes no matrix products.
    """
    return _engine("linear", block, LINEAR)


def _engine(kind: str, block: str, known: tuple[str, ...]):
    require_one_of(kind, block, [*known, NONE])
    if block == NONE:
        return None
    module = importlib.import_module(f"{__package__}.{block}")
    return getattr(module, "products", module.engine) if kind == "linear" else module.engine
