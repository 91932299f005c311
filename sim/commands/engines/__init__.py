"""Engines: a language model's attention or matrix products computed by a block's RTL.

The engine of ``veda.veda_core`` is ``engine`` in ``sim.commands.engines.veda.veda_core``. Every
output of the RTL is compared with the block's bit-exact model, and the first difference raises
:class:`sim.commands.engines.difference.Difference`.
"""

import importlib
import importlib.util

from hw.parameters import require_one_of

ATTENTION = ("veda.veda_core",)
"""Blocks that compute a layer's attention."""


def attention_engine(block: str):
    """The engine of a block.

    :raises ParameterError: if the block computes no attention.
    """
    require_one_of("attention", block, [*ATTENTION])
    return importlib.import_module(f"sim.commands.engines.{block}").engine
