"""Traces: inputs of a real language model's attention and matrix products.

A trace is one ``.npz`` file:

=========== ============================ ==================================================
name        shape                        holds
=========== ============================ ==================================================
``q``       [layer, head, token, d]      queries, positions already encoded (RoPE applied)
``k``       [layer, kv head, token, d]   keys, positions already encoded
``v``       [layer, kv head, token, d]   values
``scale``   []                           softmax scale, 1 / sqrt(d) in most models
``x/NAME``  [token, dim]                 activations that enter a matrix product
``w/NAME``  [dim, out]                   (some columns of) the weights they multiply
``meta``    []                           JSON text: model, layers, text, ...
=========== ============================ ==================================================

Arrays are float16, float32 or float64; the largest magnitude in each is 0 or between ``SMALLEST``
and ``LARGEST``. Testbenches round values to a block's format, to infinity if they exceed it. All
arrays together have at most ``MOST_BYTES`` bytes. ``q``, ``k``, ``v`` and ``scale`` come
together or not at all; a file holds those, or some ``x/`` or ``w/``, or everything. Query head
``h`` reads kv head ``h // group``, ``group`` being heads divided by kv heads. Arrays ``run/NAME``,
what blocks gave in a run on this data, may be beside them and are not read.
"""

import json
import os
import tokenize
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from golden.files import replacing

LARGEST = 1e15
"""Bound on an array's largest magnitude, so that sums of products are finite in float32."""
SMALLEST = 1e-30
"""Least value of an array's largest magnitude, unless it is 0. FP16 ends at 6e-8."""
MOST_BYTES = 1 << 30
"""Size of all arrays together, uncompressed."""

_FLOATS = (np.float16, np.float32, np.float64)
_ALONE = ("q", "k", "v", "scale", "meta")
RUN = "run/"
"""Beginning of the names of arrays that are not the trace's."""


class TraceError(ValueError):
    """A trace that cannot be used; the text is one sentence that says why."""


class Attention(NamedTuple):
    """A trace's arrays of attention: q [layer, head, token, d], k and v, and the softmax scale."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scale: float


@dataclass(frozen=True, eq=False)
class Trace:
    """A checked trace, arrays as in the table above; ``q``, ``k``, ``v``, ``scale`` may be None.

    Raises ``TraceError`` when a shape, dtype or value is wrong, so an instance is always sound.
    """

    q: np.ndarray | None = None
    k: np.ndarray | None = None
    v: np.ndarray | None = None
    scale: float | None = None
    x: dict[str, np.ndarray] = field(default_factory=dict)
    w: dict[str, np.ndarray] = field(default_factory=dict)
    meta: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_attention()
        for kind, arrays, axes in (("x", self.x, "[token, dim]"), ("w", self.w, "[dim, out]")):
            for name, array in arrays.items():
                _check_array(f"{kind}/{name}", array, axes, 2)
        for name in self.x.keys() & self.w.keys():
            dim, rows = self.x[name].shape[1], self.w[name].shape[0]
            if dim != rows:
                raise TraceError(
                    f"w/{name} must have {dim} rows, one per column of x/{name}, not {rows}"
                )
        if self.q is None and not self.x and not self.w:
            raise TraceError("it holds no data: give q, k, v and scale, or some x/NAME or w/NAME")
        if not isinstance(self.meta, dict):
            raise TraceError(f"meta must be a JSON object, not {type(self.meta).__name__}")

    @property
    def attention(self) -> Attention:
        """``q``, ``k``, ``v`` and ``scale``; raises :class:`TraceError` without them."""
        if self.q is None or self.k is None or self.v is None or self.scale is None:
            raise TraceError("it holds no q, k and v, so it has no heads")
        return Attention(self.q, self.k, self.v, self.scale)

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.attention.q.shape[1] // self.attention.k.shape[1]

    def _check_attention(self) -> None:
        parts = {"q": self.q, "k": self.k, "v": self.v, "scale": self.scale}
        absent = [name for name, value in parts.items() if value is None]
        if len(absent) == len(parts):
            return
        if absent:
            present = [name for name in parts if name not in absent]
            raise TraceError(
                f"q, k, v and scale come together: it holds {_listed(present)}"
                f" but not {_listed(absent)}"
            )
        q, k, v, scale = self.attention
        for name, array in (("q", q), ("k", k), ("v", v)):
            _check_array(name, array, "[layer, head, token, d]", 4)
        layers, heads, tokens, d = q.shape
        kv_heads = k.shape[1]
        if (k.shape[0], k.shape[2]) != (layers, tokens) or k.shape[3] != d:
            raise TraceError(
                "k must have shape [layer, head, token, d] with the layer count, token count and"
                f" d of q, ({layers}, heads, {tokens}, {d}), not {k.shape}"
            )
        if v.shape != k.shape:
            raise TraceError(f"v must have the shape of k, {k.shape}, not {v.shape}")
        if heads % kv_heads:
            raise TraceError(
                f"the heads of q must be a multiple of the heads of k, not {heads} and {kv_heads}"
            )
        if not (np.isfinite(scale) and scale > 0):
            raise TraceError(f"scale must be a finite number above zero, not {scale}")
        if not SMALLEST <= scale <= LARGEST:
            raise TraceError(f"scale must be between {SMALLEST:g} and {LARGEST:g}, not {scale}")


def load(path: str | os.PathLike) -> Trace:
    """Read and check the trace at ``path``; arrays keep the dtype they were stored with.

    Raises ``TraceError``, its text starting with ``trace PATH:``, when the file is missing, is no
    ``.npz``, is damaged, holds Python objects (never unpickled) or fails a check of ``Trace``.
    """
    try:
        return _assemble(_read_arrays(Path(path)))
    except TraceError as error:
        raise TraceError(f"trace {path}: {error}") from None


def save(path: str | os.PathLike, trace: Trace) -> None:
    """Write ``trace`` to ``path``, compressed, whole or not at all.

    The same trace gives the same bytes. Raises ``OSError`` when the file cannot be written.
    """
    arrays: dict[str, Any] = {}
    if trace.q is not None:
        arrays |= trace.attention._asdict() | {"scale": np.float64(trace.attention.scale)}
    arrays |= {f"x/{name}": array for name, array in sorted(trace.x.items())}
    arrays |= {f"w/{name}": array for name, array in sorted(trace.w.items())}
    arrays["meta"] = np.array(json.dumps(trace.meta, sort_keys=True))
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


def shipped() -> list[Path]:
    """Paths of the traces that come with the package, sorted by name."""
    return sorted((Path(__file__).parent / "traces").glob("*.npz"))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        raise TraceError("there is no such file")
    if not path.is_file():
        raise TraceError("it is not a file")
    if not zipfile.is_zipfile(path):
        raise TraceError("it is not an .npz file, or its end is missing")
    name = ""
    arrays = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = [name for name in archive.files if not name.startswith(RUN)]
            for name in names:
                if name not in _ALONE and not (name[:2] in ("x/", "w/") and name[2:]):
                    raise TraceError(
                        f"unknown array {name!r}; it may hold q, k, v, scale, meta, x/NAME, w/NAME"
                    )
            # A few compressed megabytes can be gigabytes of zeros, so sizes are checked first.
            size = sum(member.file_size for member in archive.zip.infolist())
            if size > MOST_BYTES:
                raise TraceError(
                    f"its arrays take {size / 1e9:.1f} GB, more than the {MOST_BYTES / 1e9:.1f} GB"
                    " that a trace may have"
                )
            for name in names:
                arrays[name] = archive[name]
                if not isinstance(arrays[name], np.ndarray):
                    raise TraceError(f"{name} is not a NumPy array")
    except TraceError:
        raise
    except ValueError as error:
        if "pickle" in str(error) or "Object arrays" in str(error):
            raise TraceError(f"{name} holds Python objects, not numbers") from None
        raise TraceError(f"{name} is damaged ({error})") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
        raise TraceError(f"it is damaged ({error})") from None
    except (MemoryError, SyntaxError, tokenize.TokenError):
        raise TraceError(f"{name} has a damaged header") from None
    except OSError as error:
        raise TraceError(f"it cannot be read ({error.strerror or error})") from None
    return arrays


def _assemble(arrays: dict[str, np.ndarray]) -> Trace:
    scale = None
    if "scale" in arrays:
        number = arrays["scale"]
        if number.shape != () or not np.issubdtype(number.dtype, np.floating):
            raise TraceError(
                "scale must be one floating-point number,"
                f" not {number.dtype} of shape {number.shape}"
            )
        scale = float(number)
    meta = {}
    if "meta" in arrays:
        text = arrays["meta"]
        if text.shape != () or text.dtype.kind != "U":
            raise TraceError(f"meta must be one JSON text, not {text.dtype} of shape {text.shape}")
        try:
            meta = json.loads(str(text))
        except ValueError as error:
            raise TraceError(f"meta is not valid JSON ({error})") from None
        except RecursionError:
            raise TraceError("meta is nested too deep") from None
    x, w = (
        {name[2:]: array for name, array in arrays.items() if name[:2] == kind}
        for kind in ("x/", "w/")
    )
    return Trace(arrays.get("q"), arrays.get("k"), arrays.get("v"), scale, x, w, meta)


def _check_array(name: str, array: np.ndarray, axes: str, ndim: int) -> None:
    if array.dtype not in _FLOATS:
        raise TraceError(f"{name} must be float16, float32 or float64, not {array.dtype}")
    if array.ndim != ndim:
        raise TraceError(f"{name} must have shape {axes}, not {array.shape}")
    if array.size == 0:
        raise TraceError(f"{name} is empty: its shape is {array.shape}")
    finite = np.isfinite(array)
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise TraceError(
            f"{name} holds {array.size - int(finite.sum())} values that are not finite,"
            f" the first at index {list(where)}"
        )
    largest = max(float(array.max()), -float(array.min()))
    if largest and not SMALLEST <= largest <= LARGEST:
        raise TraceError(
            f"{name} has values of magnitude {largest:.3g} at most, which must be between"
            f" {SMALLEST:g} and {LARGEST:g}, or 0"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
