"""What docstrings say of parameters, latency and throughput, as plain text."""

import importlib
import inspect
import re
import sys
import textwrap

from hw import HOME
from hw.parameters import Parameters


def meaning(parameters_class: type, name: str) -> str:
    """A parameter's words in its class's docstring, or in the one that this refers to."""
    unresolved = ""
    # A parameter may be documented where it is inherited from, or refer to another class's words.
    for cls in parameters_class.__mro__:
        found = _entry(inspect.cleandoc(cls.__dict__.get("__doc__") or ""), name)
        if not found:
            continue
        reference = re.match(r"(?:.* )?(?:[Aa]s (?:in|for)|See)\b(?: :class:`([\w.]+)`)?", found)
        if reference is None:
            return found
        unresolved = unresolved or found
        if reference[1] and (words := meaning(_resolve(reference[1], cls), name)):
            return words
    return unresolved


def _entry(docstring: str, name: str) -> str:
    """The indented text under a line of names, or a first sentence that begins with names."""
    names = r"\w+(?:(?:, | and )\w+)*"
    for match in re.finditer(rf"^({names})\n((?:    .*\n?|\n(?=    ))+)", docstring, re.M):
        if name in re.findall(r"\w+", match[1]):
            return textwrap.dedent(match[2]).strip()
    # A docstring of one sentence, such as "n as in X", refers all of its names.
    first = re.match(rf"({names}) (as in :class:`[\w.]+`)", docstring)
    return first[2] if first and name in re.findall(r"\w+", first[1]) else ""


def _resolve(name: str, cls: type) -> type:
    """A class that a docstring of `cls` names; `object` where it names no class."""
    module, _, bare = name.rpartition(".")
    home = importlib.import_module(HOME + module) if module else sys.modules[cls.__module__]
    return getattr(home, bare, object)


def contract(cls: type) -> str:
    """A component's docstring without the sections on its members and arguments."""
    docstring = re.split(r"\n+(?:Members|Parameters|Attributes)\n-+\n", inspect.getdoc(cls) or "")
    return plain(docstring[0])


def latency_words(parameters_class: type[Parameters]) -> str:
    """What the number of cycles counts, in the parameters' words or in general."""
    own = inspect.getdoc(parameters_class.latency)
    return " ".join(plain(own or inspect.getdoc(Parameters.latency) or "").split())


def timing(cls: type) -> list[str]:
    """The paragraphs of a component's docstring that state its latency and throughput."""
    paragraphs = re.split(r"\n\n+", contract(cls))
    return [" ".join(p.split()) for p in paragraphs if re.search(r"\b(Latency|Throughput):", p)]


def plain(text: str) -> str:
    """Text without the markup of docstrings."""
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text)
    return re.sub(r"`+([^`]*)`+", r"\1", text).strip()
