"""What every test shares: reproducible property tests, the shipped trace, loud skips."""

import os
import shlex
import signal
import sys
from pathlib import Path

# Tests run in parallel, so threads of linear algebra within each would only slow them down.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from golden import trace
from sim.core import tools

pytest_plugins = ["tests.support.costs"]

# The same examples in every run, without a time limit; a failing example is printed.
settings.register_profile("project", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("project")


# In CI a missing tool is a failure; elsewhere the test is skipped, and says why.
MAY_SKIP = not os.environ.get("CI")


def pytest_configure():
    """Shells ignore SIGINT in what they start in the background, which tests of Ctrl-C inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """A simulator parameter named icarus marks its test, which needs Icarus and cocotb."""
    missing = None
    if not tools.has_icarus():
        missing = f"Icarus Verilog is not installed; {tools.ICARUS_ADVICE}"
    elif not tools.has_cocotb():
        missing = f"cocotb lacks {tools.LIBPYTHON}; {tools.COCOTB_ADVICE}"
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters and parameters.params.get("simulator") == "icarus":
            item.add_marker(pytest.mark.icarus)
        if missing and MAY_SKIP and item.get_closest_marker("icarus"):
            item.add_marker(pytest.mark.skip(reason=missing))


def skip_without_cocotb(monkeypatch):
    """A test that needs a cocotb simulation where none can run is skipped, with its reason."""
    if MAY_SKIP and not tools.has_cocotb():
        reason = f"cocotb lacks {tools.LIBPYTHON}; {tools.COCOTB_ADVICE}"
        monkeypatch.setattr(tools, "require_cocotb", lambda: pytest.skip(reason))


@pytest.fixture(autouse=True)
def _skip_without_cocotb(monkeypatch):
    skip_without_cocotb(monkeypatch)


@pytest.fixture(autouse=True)
def _no_weights_in_the_users_cache(monkeypatch, tmp_path):
    """Weights that a test fits go to the cache folder that it sets, else to its own folder."""
    # Not imported here: the campaign would take every test for one that depends on it.
    weight_store = sys.modules.get("golden.algorithms.kllm.weight_store")
    if weight_store is not None:
        monkeypatch.setattr(
            weight_store,
            "cache_folder",
            lambda: Path(os.environ.get("SENBAZURU_CACHE") or tmp_path / "cache"),
        )


@pytest.fixture
def call(monkeypatch, capsys):
    """Calls a command line's ``main`` in this process; returns status, stdout and stderr."""

    def call(main, line: str) -> tuple[int, str, str]:
        """Words of `line` are quoted as in a shell."""
        monkeypatch.setattr(sys, "argv", ["program", *shlex.split(line)])
        # A command's progress goes to the standard error of that call.
        monkeypatch.setattr(tools.PROGRESS, "handlers", [])
        try:
            status = main()
        except SystemExit as exit:
            status = exit.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def shipped_trace():
    """The trace that comes with the project."""
    return trace.load(trace.shipped()[0])


@pytest.fixture(scope="session")
def tensors():
    """The tiny model's tensors by GGUF name."""
    from tests.support.lm.tiny_llama import random_tensors

    return random_tensors()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, tensors):
    """Path of the tiny model's GGUF file."""
    from tests.support.lm.tiny_llama import write_gguf

    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", tensors)


@pytest.fixture(scope="session")
def smollm2():
    """Path of the real model; skips where there is no network to fetch it from."""
    from golden.download import NetworkError
    from golden.lm.models import model_path

    try:
        return model_path()
    except NetworkError as error:
        pytest.skip(str(error))
