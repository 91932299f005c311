"""The courses in docs/courses: sessions print what it says, commands run, solutions hold."""

import contextlib
import io
import re
import shlex
import subprocess
import sys

import pytest

from examples.course import evict_by_sum, fault, pictures, speedup
from examples.course.topick import chunk_widths, from_old_to_new, wrong_margin
from sim.core.tools import ROOT
from tests.support.pictures import same_drawing

PAGES = {path.stem: path.read_text() for path in (ROOT / "docs" / "courses").glob("*.md")}
BLOCKS = {
    name: re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S) for name, text in PAGES.items()
}


def printed(function) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        function()
    return text.getvalue()


@pytest.mark.parametrize("name", PAGES)
def test_the_session_prints_what_the_page_says(name):
    session: dict = {}
    kinds = [kind for kind, _ in BLOCKS[name] if kind != "sh"]
    assert kinds == ["python", "text"] * (len(kinds) // 2) and len(kinds) >= 8
    texts = [text for kind, text in BLOCKS[name] if kind != "sh"]
    for code, said in zip(texts[::2], texts[1::2], strict=True):
        assert printed(lambda code=code: exec(code, session)) == said


def test_least_sum_keeps_the_first_rows():
    """They have been summed up for longest; the error is more than twice voting's."""
    least, votes, alone = printed(evict_by_sum.main).splitlines()
    assert least == "least sum: error 0.92, 32 of 32 rows older than 32 tokens"
    assert votes == "votes: error 0.36, 7 of 32 rows older than 32 tokens"
    assert alone.startswith("kept by the sum alone: 1 2 3 4 5 6 7 8 9 ")


def test_what_eviction_buys():
    total, votes, _ = printed(speedup.main).splitlines()
    assert total == "530077184 cycles with all rows, 121762816 with 512: 4.4 times less"
    assert votes == "a step of 513 rows takes 33245 cycles, 33974 with votes"


@pytest.mark.campaign
def test_chunks_of_other_widths():
    two, three, four, six = printed(chunk_widths.main).splitlines()
    assert two == "2 bits: K 1.23, V 2.61; 16 bytes a chunk, 0.50 bursts"
    assert three.startswith("3 bits: K 1.18") and four.startswith("4 bits: K 1.18, V 2.58")
    assert six.startswith("6 bits: K 1.05, V 2.50")


def test_tokens_in_another_order():
    newest, oldest, last = printed(from_old_to_new.main).splitlines()
    assert newest == "newest first: 1042 of 1536 chunks read, 15 values"
    assert oldest == "from old to new: 1047 of 1536 chunks read, 19 values"
    assert last.endswith(": 1536 of 1536 chunks read, 512 values")


def test_margins_without_negative_elements():
    outside, largest = printed(wrong_margin.main).splitlines()
    assert outside == "1634 of 4608 scores outside of the bounds after the first chunk"
    assert largest == "largest probability of a pruned token: 0.7280"


def test_the_fault_is_in_the_verilog():
    name, text = fault.faulty()
    assert name == "veda_veda_core_small.v"
    assert text.count(f": {fault.WRONG}") == 1 and fault.RIGHT not in text


@pytest.mark.campaign
def test_the_fault_is_wrong_in_some_heads(run_python, tmp_path):
    status, out = run_python("-m", "examples.course.fault", str(tmp_path))
    assert status == 0
    command = " ".join(out.split("now run: .venv/bin/python ")[1].split())
    status, out = run_python(*shlex.split(command))
    assert status == 1 and "stream o" in out and "stream report" not in out


@pytest.mark.campaign
def test_pictures_are_those_of_the_page(tmp_path):
    pictures.main(tmp_path)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["course_cache.svg", "course_error.svg"]
    for name in made:
        assert f"images/{name}" in PAGES["veda"]
        assert same_drawing(tmp_path / name, ROOT / "docs" / "images" / name)


@pytest.mark.campaign
@pytest.mark.parametrize("name", PAGES)
def test_commands_do_what_the_page_says(name, run_python, tmp_path):
    """The command that draws a picture is run by `test_timeline.py`."""
    lines = [line for kind, text in BLOCKS[name] if kind == "sh" for line in text.splitlines()]
    commands = [line for line in lines if "sim timeline" not in line]
    assert len(commands) == 4
    for command in commands:
        words = shlex.split(command.replace("build/course", str(tmp_path)), comments=True)
        if words[0] != ".venv/bin/python":
            assert subprocess.run(words).returncode == 0
            continue
        status, out = run_python(*words[1:])
        assert status == ("# fails" in command), out


@pytest.fixture
def run_python():
    def run(*words: str) -> tuple[int, str]:
        made = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return made.returncode, made.stdout + made.stderr

    return run
