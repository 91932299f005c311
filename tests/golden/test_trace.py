"""Trace files: writing and reading are inverse, and errors are one sentence."""

import io
import json
import os
import zipfile

import numpy as np
import pytest

from golden import trace as traces
from golden.files import replacing
from golden.trace import Trace, TraceError, load, save

LAYERS, HEADS, KV_HEADS, TOKENS, D = 2, 6, 2, 5, 4


def arrays(**changed):
    """A sound trace's arrays by name, some changed; None leaves one out."""
    rng = np.random.default_rng(0)
    kv = (LAYERS, KV_HEADS, TOKENS, D)
    made = {
        "q": rng.normal(size=(LAYERS, HEADS, TOKENS, D)).astype(np.float16),
        "k": rng.normal(size=kv).astype(np.float32),
        "v": rng.normal(size=kv),
        "scale": np.float64(0.5),
        "x/a": rng.normal(size=(3, 8)).astype(np.float32),
        "w/a": rng.normal(size=(8, 2)).astype(np.float32),
        "meta": np.array(json.dumps({"model": "tiny"})),
    }
    made |= {name.replace("_", "/"): value for name, value in changed.items()}
    return {name: np.asarray(value) for name, value in made.items() if value is not None}


def with_bad(name, value, at):
    array = arrays()[name].copy()
    array[at] = value
    return {name.replace("/", "_"): array}


def test_round_trip(tmp_path):
    path = tmp_path / "t.npz"
    given = arrays()
    trace = Trace(
        given["q"],
        given["k"],
        given["v"],
        0.5,
        {"a": given["x/a"]},
        {"a": given["w/a"]},
        {"model": "tiny", "layers": [3, 15]},
    )
    save(path, trace)
    back = load(path)
    for name in "qkv":
        stored, read = getattr(trace, name), getattr(back, name)
        assert stored.dtype == read.dtype
        np.testing.assert_array_equal(stored, read)
    np.testing.assert_array_equal(back.x["a"], given["x/a"])
    np.testing.assert_array_equal(back.w["a"], given["w/a"])
    assert (back.scale, back.meta, back.group) == (0.5, trace.meta, 3)
    first = path.read_bytes()
    save(path, back)
    assert path.read_bytes() == first
    assert os.listdir(tmp_path) == ["t.npz"]


def test_parts_may_be_absent(tmp_path):
    path = tmp_path / "t.npz"
    only_attention = arrays(x_a=None, w_a=None, meta=None)
    np.savez(path, **only_attention)
    assert load(path).x == {} and load(path).meta == {}
    np.savez(path, **{"x/a": arrays()["x/a"]})
    trace = load(path)
    assert trace.q is None and trace.scale is None and trace.x["a"].shape == (3, 8)
    with pytest.raises(TraceError, match="it has no heads"):
        _ = trace.group


BAD_ARRAYS = {
    "k tokens": (
        {"k": np.ones((LAYERS, KV_HEADS, TOKENS + 1, D))},
        (
            "k must have shape [layer, head, token, d] with the layer count, token count and d of"
            " q, (2, heads, 5, 4), not (2, 2, 6, 4)"
        ),
    ),
    "k layers": ({"k": np.ones((1, KV_HEADS, TOKENS, D))}, "not (1, 2, 5, 4)"),
    "k d": ({"k": np.ones((LAYERS, KV_HEADS, TOKENS, 3))}, "not (2, 2, 5, 3)"),
    "k axes": (
        {"k": np.ones((KV_HEADS, TOKENS, D))},
        "k must have shape [layer, head, token, d], not (2, 5, 4)",
    ),
    "v shape": (
        {"v": np.ones((LAYERS, 1, TOKENS, D))},
        "v must have the shape of k, (2, 2, 5, 4), not (2, 1, 5, 4)",
    ),
    "groups": (
        {"k": np.ones((LAYERS, 4, TOKENS, D)), "v": np.ones((LAYERS, 4, TOKENS, D))},
        "the heads of q must be a multiple of the heads of k, not 6 and 4",
    ),
    "dtype": (
        {"q": np.ones((LAYERS, HEADS, TOKENS, D), np.int8)},
        "q must be float16, float32 or float64, not int8",
    ),
    "nan": (
        with_bad("v", np.nan, (1, 0, 2, 3)),
        "v holds 1 values that are not finite, the first at index [1, 0, 2, 3]",
    ),
    "infinite": (
        with_bad("x/a", np.inf, 1),
        "x/a holds 8 values that are not finite, the first at index [1, 0]",
    ),
    "empty": (
        {"q": np.ones((LAYERS, HEADS, 0, D), np.float16)},
        "q is empty: its shape is (2, 6, 0, 4)",
    ),
    "missing": (
        {"v": None, "scale": None},
        "q, k, v and scale come together: it holds q and k but not v and scale",
    ),
    "scale value": ({"scale": -1.0}, "scale must be a finite number above zero, not -1.0"),
    "scale nan": ({"scale": np.nan}, "scale must be a finite number above zero, not nan"),
    "scale shape": (
        {"scale": np.ones(2)},
        "scale must be one floating-point number, not float64 of shape (2,)",
    ),
    "x axes": ({"x_a": np.ones(8)}, "x/a must have shape [token, dim], not (8,)"),
    "w axes": ({"w_a": np.ones(8)}, "w/a must have shape [dim, out], not (8,)"),
    "w rows": (
        {"w_a": np.ones((9, 2))},
        "w/a must have 8 rows, one per column of x/a, not 9",
    ),
    "meta type": ({"meta": 3}, "meta must be one JSON text, not int64 of shape ()"),
    "too large": (
        with_bad("v", 1e300, (1, 0, 2, 3)),
        "v has values of magnitude 1e+300 at most, which must be between 1e-30 and 1e+15, or 0",
    ),
    "too small": (
        {"k": np.full((LAYERS, KV_HEADS, TOKENS, D), -1e-300)},
        "k has values of magnitude 1e-300 at most, which must be between 1e-30 and 1e+15, or 0",
    ),
    "scale large": ({"scale": 1e300}, "scale must be between 1e-30 and 1e+15, not 1e+300"),
    "meta depth": ({"meta": "[" * 200_000}, "meta is nested too deep"),
    "meta text": ({"meta": "{"}, "meta is not valid JSON"),
    "meta kind": ({"meta": "[1]"}, "meta must be a JSON object, not list"),
    "unknown": (
        {"Q": np.ones(3)},
        "unknown array 'Q'; it may hold q, k, v, scale, meta, x/NAME, w/NAME",
    ),
    "no data": (
        {"q": None, "k": None, "v": None, "scale": None, "x_a": None, "w_a": None},
        "it holds no data: give q, k, v and scale, or some x/NAME or w/NAME",
    ),
    "objects": (
        {"k": np.array([{}, None], dtype=object)},
        "k holds Python objects, not numbers",
    ),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(tmp_path, case):
    changed, sentence = BAD_ARRAYS[case]
    path = tmp_path / "t.npz"
    np.savez(path, **arrays(**changed))
    with pytest.raises(TraceError) as caught:
        load(path)
    assert str(caught.value).startswith(f"trace {path}: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(TraceError, match="there is no such file"):
        load(tmp_path / "absent.npz")
    with pytest.raises(TraceError, match="it is not a file"):
        load(tmp_path)


def test_files_that_are_no_npz(tmp_path):
    path = tmp_path / "t.npz"
    npy = io.BytesIO()
    np.save(npy, np.ones(3))
    for content in (b"", b"hello", npy.getvalue()):
        path.write_bytes(content)
        with pytest.raises(TraceError, match="it is not an .npz file"):
            load(path)


def test_cut_and_damaged_files(tmp_path):
    path = tmp_path / "t.npz"
    np.savez_compressed(path, **arrays())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="its end is missing"):
        load(path)
    damaged = bytearray(whole)
    damaged[200:260] = bytes(60)
    path.write_bytes(damaged)
    with pytest.raises(TraceError, match="damaged"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("q", "not an array")
    with pytest.raises(TraceError, match="q is not a NumPy array"):
        load(path)


def test_what_is_too_large_is_not_read(tmp_path, monkeypatch):
    """A small file may hold gigabytes of zeros."""
    path = tmp_path / "t.npz"
    np.savez_compressed(path, **arrays(x_a=np.zeros((1000, 1000)), w_a=None))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(traces, "MOST_BYTES", 4_000_000)
    monkeypatch.setattr(np.lib.format, "read_array", None)  # nothing may read
    with pytest.raises(TraceError, match="its arrays take 0.0 GB, more than the 0.0 GB"):
        load(path)


def test_zeros_and_the_largest_values_are_sound():
    for value in (0.0, traces.LARGEST, -traces.LARGEST, traces.SMALLEST):
        Trace(x={"a": np.full((1, 2), value)})


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "t.npz"
    path.write_bytes(b"old")

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save(path, Trace(x={"a": np.ones((1, 1))}))
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["t.npz"]


def test_a_pipe_is_written_and_stays(tmp_path):
    """So is /dev/stdout; a rename over it would put a file in its place."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with replacing(path) as file:
        file.write(b"through")
    assert os.read(reader, 99) == b"through" and path.is_fifo()
    os.close(reader)


def test_replacing_is_all_or_nothing(tmp_path):
    path = tmp_path / "f"
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "no" / "f"):
        pass
    assert caught.value.filename == str(tmp_path / "no" / "f")
    with pytest.raises(IsADirectoryError), replacing(tmp_path):
        pass
    (tmp_path / "plain").write_bytes(b"")
    with replacing(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_shipped_traces_are_sound_and_small():
    paths = traces.shipped()
    assert paths and paths == sorted(paths)
    assert sum(path.stat().st_size for path in paths) <= 4e6
    for path in paths:
        trace = load(path)
        layers, heads, tokens, d = trace.q.shape
        assert layers >= 3 and tokens >= 512 and (heads, trace.k.shape[1], d) == (9, 3, 64)
        assert len(trace.meta["layers"]) == layers
        assert trace.scale == 0.125
        assert trace.x.keys() == trace.w.keys() and len(trace.x) == 2 * layers
