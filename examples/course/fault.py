"""Exercise 3 of docs/courses/veda.md: .venv/bin/python -m examples.course.fault FOLDER

It writes the Verilog of `veda.veda_core`, preset small, with one line changed, into a folder.
"""

import sys
from pathlib import Path

from hw.catalogue import find
from hw.emit.export import export

BLOCK = find("veda.veda_core")


def faulty() -> tuple[str, str]:
    """Name and text of the Verilog file."""
    made = export(BLOCK, BLOCK.parameters_class.preset("small"))
    assert made.verilog.count(RIGHT) == 1
    return f"{made.name}.v", made.verilog.replace(RIGHT, WRONG)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    name, text = faulty()
    (folder / name).write_text(text)
    print("now run: .venv/bin/python -m sim run veda.veda_core --preset small --driver harness")
    print(f"    --stall none --verilog {folder / name}")


# The solution is below.
#
#
#
#
#
#
# Commands, requests and scores are right, and so are most heads' outputs: rows and array work. A
# wrong output is wrong in all elements of its head, by one factor: all its probabilities are too
# small, so the sum is at fault, not an exponential. Heads whose first eight scores have the largest
# are right; wrong are those in which a later one is larger by an octave. There the running sum has
# to be shifted down, and in this Verilog it is not:
RIGHT = "total >> sum_shift;"
WRONG = "total;"

if __name__ == "__main__":
    main()
