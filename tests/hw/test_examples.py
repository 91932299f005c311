"""Every block's docstring has a usage example, and each of them runs as written."""

import doctest
import gc

import pytest

from hw.catalogue import blocks


# Examples create components to read their ports, and elaborate none of them.
@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_example(block):
    name, module = block.component.__name__, block.component.__module__
    assert block.component.__doc__, f"{block.name} has no docstring"
    finder = doctest.DocTestFinder(recurse=False)
    [example] = finder.find(block.component, name, module=False, globs={})
    assert example.examples, f"the docstring of {module}.{name} has no example (>>> ...)"
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(example).failed == 0
    gc.collect()  # Amaranth warns of unused components when they are freed
