"""The command ``senbazuru``: ``hw``, ``golden`` and ``sim``, as ``python -m hw`` of a checkout."""

import importlib.metadata
import runpy
import sys

PARTS = {
    "hw": "list blocks, write their Verilog, synthesise them",
    "golden": "language models, algorithms, and what they lose",
    "sim": "simulate blocks against their golden models",
}
EXTRAS = {
    "hw": "fpga",
    "golden": "golden",
    "sim": "sim",
}
"""What holds the packages that a part may need beside those for Verilog."""


def main() -> int:
    """Run the part that the first word names; returns the exit status."""
    part = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if part in ("-h", "--help"):
        print("usage: senbazuru [-h] [--version] PART ...\n")
        print("Open, bit-checked RTL of accelerators that make LLM decoding cheap.\n\nparts:")
        for name, summary in PARTS.items():
            print(f"  {name:8} {summary} (senbazuru {name} --help)")
        return 0
    if part == "--version":
        print(f"senbazuru {importlib.metadata.version('senbazuru')}")
        return 0
    if part not in PARTS:
        print(f"error: there is no part {part}; known: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    del sys.argv[1]
    try:
        runpy.run_module(f"senbazuru.{part}", run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        extra = EXTRAS[part]
        print(
            f"error: {error.name} is not installed: pip install 'senbazuru[{extra}]'",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
