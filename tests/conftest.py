"""What every test shares: reproducible property tests, the shipped trace, Icarus or a loud skip."""

import os

# Tests run side by side; threads of linear algebra within each would only get in their way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from golden import trace
from golden.lm.download import NetworkError, default_model
from hw.catalogue import BLOCKS, Block
from sim.tools import ICARUS_ADVICE, has_icarus
from tests.lm.tiny_llama import random_tensors, write_gguf

# Examples are the same in every run and slow machines do not fail them; a failing one is printed.
settings.register_profile("project", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("project")


@pytest.hookimpl(tryfirst=True)  # before groups are read
def pytest_collection_modifyitems(items):
    """Sorts the tests by block, and out those that need Icarus where there is none.

    Each block's tests run in one process, or two would generate and compile the same at once.
    A simulator parameter named icarus marks its test; without Icarus that is a loud skip.
    """
    names = {block.name for block in BLOCKS}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("simulator") == "icarus":
            item.add_marker(pytest.mark.icarus)
        block = parameters.get("block")
        file = f"{item.path.parent.name}.{item.path.stem.removeprefix('test_')}"
        own = next((n for n in names if file in (n, f"{n}_formal", f"{n}_golden")), file)
        group = block.name if isinstance(block, Block) else own
        item.add_marker(pytest.mark.xdist_group(group))
    if has_icarus() or os.environ.get("CI"):  # where CI runs, a missing simulator is a failure
        return
    missing = pytest.mark.skip(reason=f"Icarus Verilog is not installed; {ICARUS_ADVICE}")
    for item in items:
        if item.get_closest_marker("icarus"):
            item.add_marker(missing)


@pytest.fixture(scope="session")
def shipped_trace():
    """The trace that comes with the project."""
    return trace.load(trace.shipped()[0])


@pytest.fixture(scope="session")
def tensors():
    """The tiny model's tensors by GGUF name."""
    return random_tensors()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, tensors):
    """Path of the tiny model's GGUF file."""
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", tensors)


@pytest.fixture(scope="session")
def smollm2():
    """Path of the real model; skips where there is no network to fetch it from."""
    try:
        return default_model()
    except NetworkError as error:
        pytest.skip(str(error))
