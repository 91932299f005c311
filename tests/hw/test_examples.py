"""Every block's docstring has a usage example, and each of them runs as written."""

import doctest

import pytest

from hw.catalogue import blocks


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.name)
def test_example(block):
    name, module = block.component.__name__, block.component.__module__
    assert block.component.__doc__, f"{block.name} has no docstring"
    finder = doctest.DocTestFinder(recurse=False)
    [example] = finder.find(block.component, name, module=False, globs={})
    assert example.examples, f"the docstring of {module}.{name} has no example (>>> ...)"
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(example).failed == 0
