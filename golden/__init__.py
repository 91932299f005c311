"""NumPy models of the accelerators, and a language model for real input data."""


class InputError(ValueError):
    """A file, text or setting that cannot be used; the text is one sentence that says why."""
