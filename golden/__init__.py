"""NumPy models of the accelerators: what must come out."""


class InputError(ValueError):
    """A file, text or setting that cannot be used; the text is one sentence that says why."""
