"""What tests of a core in a language model share: a small model, the core's mutants."""

import pytest

from hw.catalogue import find
from tests.support.mutant_file import MutantFile
from tests.support.sim.generated import COUNT, write_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A file with a random Llama; a module that needs another size has its fixture."""
    return write_llama(tmp_path_factory.mktemp("generate"))


@pytest.fixture(scope="module")
def mutants(request, parameters, tmp_path_factory):
    """Mutants in each of the module's `INSTANCES` of its `BLOCK`, made once."""
    module = request.module
    folder = tmp_path_factory.mktemp("mutants")
    return MutantFile(folder, find(module.BLOCK), parameters, COUNT, module.INSTANCES)
