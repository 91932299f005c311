"""Hooks of MkDocs for ``make site``: the pages that are not in ``docs``.

README, CONTRIBUTING and CHANGELOG are at the top of the repository; a block's page is what
``python -m hw show --markdown`` prints; a source file is a page if a page links to it. Links that
leave ``docs`` lead to these. Blocks of the page ``live`` run in it, and the page ``generate`` has
the generators.
"""

import functools
import json
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from hw.catalogue import blocks
from hw.emit.show import describe, markdown
from sim.commands import tables, timeline
from sim.core.tools import ROOT, ToolError
from sim.drivers import generator, live
from sim.drivers.live import blocks as live_blocks
from sim.drivers.live.module import NoCompiler

TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages that are made of files at the top of the repository."""

BLOCKS = PurePosixPath("docs/blocks.md")
"""The table of all blocks, whose rows name each block's files."""

RUNS = PurePosixPath("docs/results/timelines.json")
SHORT = 4
"""Cycles of a run of which a picture says nothing."""

LIVE = "live.md"
"""The page whose blocks run."""

LIVE_ELEMENT = re.compile(r'(<div class="live" data-block="[\w.]+">)(.*?)(</div>)')

GENERATE = "generate.md"
"""The page that writes Verilog."""

GENERATE_ELEMENT = re.compile(r'(<div class="generator">)(.*?)(</div>)')
TARGET = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
BLOCK_ROW = re.compile(r"^\| `((\w+)\.(\w+))` \|.*\| (\[hardware\].*) \|$", re.M)
EMPTY_HEAD = re.compile(r"<th((?: [^>]*)?)></th>")
SECTION = re.compile(
    r'aria-labelledby="(__nav_\d+)_label"'
    r'([^>]*>\s*<label class="md-nav__title" for="\1">\s*<span [^>]*></span>\s*([^<]*?)\s*</label>)'
)
SEARCH = '<div class="md-search" data-md-component="search" role="dialog"'
LANGUAGES = {".py": "python", ".v": "verilog", ".toml": "toml", ".c": "c", ".h": "c"}
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files, config):
    """Add the pages that are made here."""
    # Here, as only `make site` has these.
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    for uri, text in made_pages().items():
        files.append(File.generated(config, uri, content=text))
    try:
        loaded = live_files() | generator_files() | run_pictures()
    except ToolError as error:
        raise PluginError(str(error)) from None
    for uri, content in loaded.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(text: str, *, page, config, files) -> str:
    """Links of a page of ``docs``; those of made pages are right already."""
    if page.file.generated_by:
        return text
    if page.file.src_uri == LIVE:
        text = with_live_blocks(text, live_files())
    if page.file.src_uri == GENERATE:
        text = with_generator(text, generator_files())
    return linked(text, PurePosixPath("docs") / page.file.src_uri)


def on_post_page(output: str, *, page, config) -> str:
    """The page as HTML, with what programs that read it aloud need and Markdown cannot say."""
    output = EMPTY_HEAD.sub(r"<td\1></td>", output)
    # The theme names a section by its label, which is empty if the section has an index page.
    output = SECTION.sub(r'aria-label="\3"\2', output)
    return output.replace(SEARCH, f'{SEARCH} aria-label="Search"', 1)


@functools.cache
def made_pages() -> dict[str, str]:
    """Text of each page that is no file of ``docs``, by its path there."""
    made = {
        page: linked(read(PurePosixPath(name)), PurePosixPath(name)) for name, page in TOP.items()
    }
    files = {name: cell for name, *_, cell in BLOCK_ROW.findall(read(BLOCKS))}
    for block in blocks():
        parameters = block.parameters_class.preset("default")
        shown = markdown(describe(block, "default", parameters))
        cell = linked(files[block.name], BLOCKS, page=f"blocks/{block.name}.md")
        verilog = f"[its Verilog in the browser](../generate.md?block={block.name})"
        shown = shown.replace("preset `default`.", f"preset `default`; {verilog}.", 1)
        more = f"{run_of(block.name)}{measured_of(block.name)}Files: {cell}."
        made[f"blocks/{block.name}.md"] = f"{shown}\n\n{more}\n"
    for path in sources():
        made[page_of(path)] = source_page(path)
    return made


@functools.cache
def kept_runs() -> dict[str, dict]:
    """Runs of blocks, as ``python -m sim timeline all`` has kept them."""
    return json.loads((ROOT / RUNS).read_text())


def run_of(name: str) -> str:
    """A run of a block as a picture; nothing of one whose streams move in a cycle or two."""
    run = kept_runs()[name]
    if run["cycles"] <= SHORT:
        return ""
    told = f"{run['transactions']} transactions of the preset `{run['preset']}`, nothing stalls"
    cut = f"; the first {timeline.MOST} of {run['cycles']} cycles"
    told += cut if run["cycles"] > timeline.MOST else ""
    command = f"`python -m sim timeline {name}` has its parts as well"
    return f"## A run\n\n![beats on the streams of {name}]({name}.svg)\n\n{told}; {command}.\n\n"


def measured_of(name: str) -> str:
    """Area, speed and verification of a block."""
    area = tables.measured(name, "default")
    entry = tables.verification_of(name)
    lines = [f"- 45 nm, without wires: {area}."] if area else []
    if "mutants" in entry:
        lines.append(f"- Mutants: {entry['surviving']} of {entry['mutants']} survive.")
    if entry.get("proofs"):
        lines.append(f"- Proofs, exhaustive runs: {entry['proofs']}.")
    text = "\n".join(lines)
    return f"## Measured\n\n{text}\n\n[What these mean](../measured.md).\n\n" if lines else ""


@functools.cache
def run_pictures() -> dict[str, str]:
    """Pictures of the blocks' runs, by path."""
    return {
        f"blocks/{name}.svg": timeline.kept_picture(name, run)
        for name, run in kept_runs().items()
        if run["cycles"] > SHORT
    }


@functools.cache
def live_files() -> dict[str, str]:
    """Scripts and style of the page of live blocks, by path; none without Zig's compiler."""
    try:
        scripts = live_blocks.scripts()
    except NoCompiler as missing:
        print(f"the live blocks were not built: {missing}", file=sys.stderr)
        return {}
    files = {f"live/{name}.js": text for name, text in scripts.items()}
    return files | {f"live/{name}": (live.FOLDER / name).read_text() for name in live.PAGE_FILES}


@functools.cache
def generator_files() -> dict[str, str | bytes]:
    """What the page of the generator loads, by path; nothing without Pyodide."""
    try:
        files = generator.files()
    except generator.NoPyodide as missing:
        print(f"the generator's page was not built: {missing}", file=sys.stderr)
        return {}
    return {f"generator/{name}": content for name, content in files.items()}


def with_live_blocks(text: str, files: Iterable[str]) -> str:
    """The page's text with what it loads; without files it says that blocks do not run in it."""
    if not files:
        absent = "This copy of the site was built without the compiler that the live block needs."
        return LIVE_ELEMENT.sub(rf"\1{absent}\3", text)
    text = LIVE_ELEMENT.sub(r"\1The live block needs JavaScript.\3", text)
    return text + loads(files)


def with_generator(text: str, files: Iterable[str]) -> str:
    """The page's text with what it loads; without files it says that it generates nothing."""
    if not files:
        absent = "This copy of the site was built without Pyodide, which the generator needs."
        return GENERATE_ELEMENT.sub(rf"\1{absent}\3", text)
    text = GENERATE_ELEMENT.sub(r"\1The generator needs JavaScript.\3", text)
    return text + loads(f"generator/{name}" for name in ("blocks.js", *generator.PAGE_FILES))


def loads(names: Iterable[str]) -> str:
    """The end of a page that loads style and scripts, in their order."""
    elements = [
        f'<link rel="stylesheet" href="{name}">'
        if name.endswith(".css")
        else f'<script src="{name}"></script>'
        for name in names
    ]
    return "".join(f"\n\n{element}" for element in elements) + "\n"


def read(path: PurePosixPath) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def sources() -> list[PurePosixPath]:
    """Sources, files and folders, to which pages link, and the files in such folders.

    Of a link to nothing MkDocs says that it is broken.
    """
    found: dict[PurePosixPath, None] = {}
    for at in pages():
        for path, _ in targets(read(at), at):
            if page_of(path).startswith("source/") and (ROOT / path).exists():
                found[path] = None
                if (ROOT / path).is_dir():
                    found.update(dict.fromkeys(inside(path)))
    return [*found]


def pages() -> Iterator[PurePosixPath]:
    """Markdown in the repository that the site has."""
    yield from map(PurePosixPath, TOP)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        yield PurePosixPath(path.relative_to(ROOT).as_posix())


def targets(text: str, at: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    """Paths in the repository that a file's links lead to, with their anchors."""
    for target, anchor in TARGET.findall(text):
        yield PurePosixPath(posixpath.normpath(at.parent / target)), anchor


def inside(folder: PurePosixPath) -> list[PurePosixPath]:
    """Source files of a folder, without its sub-folders."""
    here = sorted(path for path in (ROOT / folder).iterdir() if path.suffix in LANGUAGES)
    return [PurePosixPath(path.relative_to(ROOT).as_posix()) for path in here]


def page_of(path: PurePosixPath) -> str:
    """The page, or the picture, of a path in the repository."""
    if path.name in TOP and len(path.parts) == 1:
        return TOP[path.name]
    if path.parts[0] == "docs" and not (ROOT / path).is_dir():
        return path.relative_to("docs").as_posix()
    name = path / "index" if (ROOT / path).is_dir() else path
    return f"source/{name}.md"


def linked(text: str, at: PurePosixPath, page: str = "") -> str:
    """The text of a file with links to pages.

    page
        The page that it becomes a part of, if it is not the file's own.
    """
    folder = posixpath.dirname(page or page_of(at))

    def change(match: re.Match) -> str:
        [(path, anchor)] = targets(f"]({match[0]})", at)
        return posixpath.relpath(page_of(path), folder or ".") + anchor

    text = TARGET.sub(change, text)
    if at == BLOCKS and not page:
        text = BLOCK_ROW.sub(lambda row: row[0].replace(f"`{row[1]}`", block_link(row[1]), 1), text)
    return text


def block_link(name: str) -> str:
    return f"[`{name}`](blocks/{name}.md)"


def source_page(path: PurePosixPath) -> str:
    """A file's text, or a folder's list of files."""
    head = f"{NOT_SEARCHED}# {path}\n\n"
    if (ROOT / path).is_dir():
        return head + "".join(f"- [{of.name}]({of.name}.md)\n" for of in inside(path))
    language = LANGUAGES.get(path.suffix, "text")
    return f"{head}````{language}\n{read(path).rstrip()}\n````\n"
