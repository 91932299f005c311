"""A module compiled again with one line of its source replaced: an injected fault."""

import sys
import types
from pathlib import Path


def with_fault(module: types.ModuleType, line: str, instead: str) -> types.ModuleType:
    """A copy of `module` in whose source `line`, which must occur exactly once, is `instead`."""
    source, text = require_once(module, line)
    copy = types.ModuleType(module.__name__)
    # Dataclasses look their module up by name while they are made.
    sys.modules[module.__name__] = copy
    try:
        exec(compile(text.replace(line, instead), source, "exec"), copy.__dict__)
    finally:
        sys.modules[module.__name__] = module
    return copy


def require_once(module: types.ModuleType, line: str) -> tuple[Path, str]:
    """The module's file and its text, in which `line` must occur exactly once."""
    assert module.__file__ is not None
    source = Path(module.__file__)
    text = source.read_text()
    assert text.count(line) == 1, f"{source.name} must have one {line!r}"
    return source, text
