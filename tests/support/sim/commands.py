"""What tests of ``python -m sim run`` share."""

SKID = "run stream.skid_buffer --preset small --vectors 40 --stall none"
READER = "run stream.sequential_reader --preset first --vectors 30"


def one_sentence(err: str) -> str:
    """The error message that follows the progress lines on standard error."""
    *progress, last = err.splitlines()
    assert all(line.endswith("…") for line in progress)
    assert last.startswith("error: ")
    return last.removeprefix("error: ")
