"""Two streams of the LAD tile keep a beat until it is taken: unbounded, on gates.

`o` is AC's, which test_tile_blocks_formal.py proves. The rule of reports depends on which heads
are in the tile, and is left to simulation.
"""

import pytest

from tests.support.formal import stream_prover


@pytest.mark.parametrize("stream", ["request", "y"])
def test_stream_rules(stream):
    assert stream_prover("lad.lad_tile").prove(stream, 900)
