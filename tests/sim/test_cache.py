"""The cache of compiled designs: what is removed, and what stays below any limit."""

import os
import time

import pytest

from hw.catalogue import find
from sim.core import cache
from sim.core.cache import DAY_S
from sim.core.design import generate
from sim.core.tools import ToolError, compiled_folder
from sim.drivers.harness.verilated import compile_harness


@pytest.fixture
def build(tmp_path, monkeypatch):
    """An empty build folder, and a function that puts an entry of some age in days into it."""
    monkeypatch.setenv("SENBAZURU_BUILD", str(tmp_path))

    def add(name: str, days: float, size: int = 100):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if name.endswith(".v"):
            path.write_bytes(bytes(size))
        else:
            path.mkdir()
            (path / "library.so").write_bytes(bytes(size))
        used = time.time() - days * DAY_S
        os.utime(path, (used, used))
        return path

    return add


def test_least_recently_used_go_first(build):
    old, older, new = (build(f"compiled/{n}", days) for n, days in [("a", 2), ("b", 3), ("c", 0)])
    text = build("generated/d.v", 1.5)
    assert [entry.path for entry in cache.prune(400)] == []
    assert [entry.path for entry in cache.prune(300)] == [older]
    assert [entry.path for entry in cache.prune(0)] == [old, text]
    assert new.exists() and os.listdir(old.parent) == ["c"] and os.listdir(text.parent) == []


def test_what_is_forgotten_goes_below_the_limit(build):
    forgotten, kept = build("compiled/a", 31), build("compiled/b", 29)
    assert [entry.path for entry in cache.prune(10**9)] == [forgotten]
    assert kept.exists()


def test_an_entry_used_meanwhile_stays(build, monkeypatch):
    path = build("compiled/a", 3)
    found = list(cache.entries())
    cache.use(path)
    monkeypatch.setattr(cache, "entries", lambda: found)
    assert cache.prune(0) == [] and path.exists()


def test_pruning_now_and_then(build, monkeypatch):
    monkeypatch.setenv("SENBAZURU_BUILD_LIMIT", "0")
    first = build("compiled/a", 3)
    cache.prune_now_and_then()
    assert not first.exists()
    second = build("compiled/b", 3)
    cache.prune_now_and_then()
    assert second.exists(), "it was done a moment ago"


def test_limits_are_sizes(monkeypatch):
    for text, size in {"0": 0, "500M": 500 << 20, "3G": 3 << 30}.items():
        monkeypatch.setenv("SENBAZURU_BUILD_LIMIT", text)
        assert cache.limit() == size
    monkeypatch.setenv("SENBAZURU_BUILD_LIMIT", "much")
    with pytest.raises(ToolError, match="must be a size such as 500M or 2G, not 'much'"):
        cache.limit()


def test_use_sets_the_time():
    block = find("stream.skid_buffer")
    design = generate(block, block.parameters_class.preset("small"))
    folder = compile_harness(design).parent
    os.utime(folder, (0, 0))
    assert compile_harness(design).parent == folder
    assert folder.parent == compiled_folder() and time.time() - folder.stat().st_mtime < 60


def test_the_command(run, build):
    build("compiled/a", 3, size=10**6), build("compiled/b", 0.5)
    status, out, _ = run("clean")
    assert status == 0 and out.startswith("removed 1 entries, 1.0 MB, from ")
    assert run("clean --days 0")[1].startswith("removed 1 entries, 0.0 MB")
    assert run("clean --days x")[0] == 2
