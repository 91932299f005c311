"""The default text is a file of the package, the same on every Python."""

import hashlib
import sys

from golden.lm.text import DEFAULT_SHA256, default_text
from golden.trace import shipped


def test_the_default_text_does_not_depend_on_the_python(monkeypatch):
    """Documented perplexities are of exactly these bytes."""
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)  # cannot be imported
    text = default_text()
    assert hashlib.sha256(text.encode()).hexdigest() == DEFAULT_SHA256
    assert text.startswith("These equivalences assume") and text.count("\n\n") == 598


def test_the_text_comes_with_its_licence():
    licence = shipped()[0].with_name("python_reference.LICENSE").read_text()
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in licence
    assert "Python Software Foundation; All Rights Reserved" in " ".join(licence.split())
    assert "Changes made to it" in licence
