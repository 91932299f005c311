"""Every output stream of UniCAIM's core keeps a beat until it is taken: unbounded, on gates."""

import pytest

from tests.support.formal import stream_prover


@pytest.mark.parametrize("stream", ["request", "selected", "report", "o"])
def test_stream_rules(stream):
    assert stream_prover("unicaim.unicaim_core").prove(stream, 900)
