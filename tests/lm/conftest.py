"""The tiny model for every test, and the real one where it can be had."""

import pytest

from golden.lm.download import NetworkError, default_model
from tests.lm.tiny_llama import random_tensors, write_gguf


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
