"""Texts by name: those on which choices are made, and those on which verdicts are reached.

``texts.toml`` lists them, docs/texts.md says what they are. A text has one role: no knob, grid or
window is chosen while looking at a held-out text; short texts, too short for windows of some
thousand tokens, are development texts too.
"""

import dataclasses
import hashlib
import json
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

from golden import FailedError
from golden.download import WheelFile

DEVELOPMENT, HELD_OUT, SHORT = "development", "held-out", "short"
ROLES = (DEVELOPMENT, HELD_OUT, SHORT)
"""No text has two; each is also the name of all its texts together."""
SHIPPED = Path(__file__).parent.parent / "traces"


@dataclasses.dataclass(frozen=True)
class Text:
    """One English text: a file that comes with the package, or a member of a wheel on PyPI.

    kind
        ``novel``, ``report``, ``law``, ...
    about
        Title or author, and year.
    licence
        A licence's SPDX name, ``public domain``, or the act that allows the use.
    size, sha256
        UTF-8 bytes of the text as :meth:`load` returns it, and their hash.
    shipped
        The file's name, of a text that comes with the package.
    wheel, megabytes, member, member_sha256
        The wheel with its version, its size, the file in it, and that file's hash.
    form
        How the text is taken out of the file: ``plain`` as it is; ``links`` without the lines that
        only say where reStructuredText's links lead; ``paper`` from S2ORC's JSON; ``articles`` from
        a table of laws, which has this one under the number `celex`.
    """

    name: str
    role: str
    kind: str
    about: str
    licence: str
    size: int
    sha256: str
    shipped: str = ""
    wheel: str = ""
    megabytes: int = 0
    member: str = ""
    member_sha256: str = ""
    form: str = "plain"
    celex: str = ""

    @property
    def source(self) -> WheelFile:
        """The wheel's file, of a text that is not shipped."""
        folder = self.wheel.replace("==", "-")
        return WheelFile(
            name=f"texts/{folder}/{Path(self.member).name}",
            parts=((self.wheel, self.member),),
            sha256=self.member_sha256,
            what=f"the text {self.name}",
            megabytes=self.megabytes,
            space=2 * self.megabytes,
            alternative="give a text of your own with --text FILE",
        )

    def load(self) -> str:
        """The text, with LF as the line ends; fetched first if the cache lacks it.

        :raises InputError: as :meth:`golden.download.WheelFile.fetch`.
        :raises FailedError: if it is not the text with that hash.
        """
        if self.shipped:
            text = _plain(SHIPPED / self.shipped)
        else:
            same = {text.source for text in TEXTS.values() if text.wheel == self.wheel}
            path = self.source.find() or self.source.fetch(same - {self.source})
            text = self._taken_from(path)
            text = text.replace("\r\n", "\n").strip() + "\n"
        found = hashlib.sha256(text.encode()).hexdigest()
        if found != self.sha256:
            raise FailedError(f"text {self.name}: its SHA-256 is {found}, not {self.sha256}")
        return text

    def _taken_from(self, path: Path) -> str:
        match self.form:
            case "plain":
                return _plain(path)
            case "links":
                lines = _plain(path).splitlines(keepends=True)
                return "".join(line for line in lines if not line.startswith(".. _"))
            case "paper":
                paper = json.loads(path.read_bytes())
                paragraphs = (part["text"] for part in paper["pdf_parse"]["body_text"])
                return "\n\n".join([paper["title"], paper["abstract"], *paragraphs])
            case "articles":
                return "\n\n".join(_articles(path, self.celex))
        raise ValueError(f"text {self.name}: unknown form {self.form!r}")


def _plain(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig")


def _articles(path: Path, celex: str) -> list[str]:
    """The articles of one law, in order, from an SQLite table of laws."""
    query = "SELECT content FROM articles WHERE celex = ? ORDER BY article_number"
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as table:
        return [content for (content,) in table.execute(query, (celex,))]


TEXTS = {
    entry["name"]: Text(**entry)
    for entry in tomllib.loads(Path(__file__).with_name("texts.toml").read_text("utf-8"))["text"]
}
"""Every text by its name, in the order in which windows are taken of them."""


def of_role(role: str) -> list[Text]:
    """The texts of one of :data:`ROLES`, in their order."""
    return [text for text in TEXTS.values() if text.role == role]
