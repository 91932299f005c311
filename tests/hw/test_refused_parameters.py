# amaranth: UnusedElaboratable=no
"""Every setting that a block refuses, and the one sentence that says why.

Settings are written as on a command line: ``python -m hw verilog stream.queue --set depth=0``.
"""

import pytest

from hw.arith.float_format import FloatFormat
from hw.arith.piecewise_linear import Lines, PiecewiseLinear, PiecewiseLinearParameters
from hw.catalogue import find
from hw.kllm.product_table import ProductTableParameters
from hw.parameters import ParameterError, Parameters
from hw.stream.credit_counter import CreditCounterParameters
from hw.veda.row_map import RowMapParameters
from hw.veda.scheduler import SchedulerParameters
from hw.veda.tree_array import TreeArrayParameters
from tests.support.hw.refused import REFUSED

# Sub-blocks, which the catalogue does not list.
HELPERS = {
    "stream.credit_counter": CreditCounterParameters,
    "kllm.product_table": ProductTableParameters,
    "veda.row_map": RowMapParameters,
    "veda.scheduler": SchedulerParameters,
    "veda.tree_array": TreeArrayParameters,
}


def parameters_of(block: str) -> Parameters:
    """The block's default parameters."""
    return (HELPERS[block] if block in HELPERS else find(block).parameters_class)()


@pytest.mark.parametrize(
    ("block", "settings", "message"),
    [(block, *row) for block, rows in REFUSED.items() for row in rows.items()],
    ids=[f"{block} {settings}" for block, rows in REFUSED.items() for settings in rows],
)
def test_settings_are_refused(block, settings, message):
    with pytest.raises(ParameterError) as refused:
        parameters_of(block).replace_from_text(settings.split())
    assert str(refused.value) == message


# What is built from arguments other than settings.
CALLS = [
    (lambda: FloatFormat(1, 10), "exponent width must be at least 2, not 1"),
    (lambda: FloatFormat(5, 1), "mantissa width must be at least 2, not 1"),
    (lambda: CreditCounterParameters.for_pipeline(-1), "latency must be at least 0, not -1"),
    (
        lambda: Lines((1,), (1,), (1,)),
        (
            "there must be one bound fewer than slopes, and as many slopes as intercepts, "
            "not (2, 1, 1)"
        ),
    ),
    (
        lambda: PiecewiseLinear(PiecewiseLinearParameters(), Lines((), (1,), (1,))),
        "lines must be as many as intervals, not 1",
    ),
]


@pytest.mark.parametrize(("make", "message"), CALLS, ids=[message for _, message in CALLS])
def test_arguments_are_refused(make, message):
    with pytest.raises(ParameterError) as refused:
        make()
    assert str(refused.value) == message
