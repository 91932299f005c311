"""Notes the project's files that a Python program opens; :mod:`sim.core.jobs.reads` has it loaded.

Python imports this module when it starts, in every program that inherits ``PYTHONPATH``.
"""

import os
import sys

_FOLDER, _ROOT = os.environ.get("SENBAZURU_READS"), os.environ.get("SENBAZURU_READS_ROOT", "")
_seen: set[str] = set()


def _note(line: str) -> None:
    if line not in _seen:
        _seen.add(line)
        # At once and by one call, because a simulator ends without a word.
        file = os.open(f"{_FOLDER}/{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{line}\n".encode())
        os.close(file)


def _hook(event: str, arguments: tuple) -> None:
    if event == "open":
        path = arguments[0]
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str) and (path.startswith(_ROOT) or not path.startswith("/")):
            _note(os.path.abspath(path))
    elif event == "subprocess.Popen":
        environment = os.environ if arguments[3] is None else arguments[3]
        if "SENBAZURU_READS" not in environment or os.path.dirname(__file__) not in environment.get(
            "PYTHONPATH", ""
        ):
            _note("*")


if _FOLDER and os.path.isdir(_FOLDER):
    sys.addaudithook(_hook)
