"""NumPy models of the accelerators, and a language model for real input data."""


class InputError(ValueError):
    """A file, text or setting that cannot be used; the text is one sentence that says why."""


class FailedError(InputError):
    """Work on sound input that failed, such as a download or a sum that overflows."""
