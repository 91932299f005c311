"""`python -m sim.icarus`: install Icarus Verilog if this user may, or say loudly what to do."""

import os
import shutil
import subprocess
import sys

from sim.tools import ICARUS_ADVICE, has_icarus


def install() -> bool:
    """Try apt, as root or by sudo without a password. True if Icarus is there afterwards."""
    if has_icarus() or shutil.which("apt-get") is None:
        return has_icarus()
    prefix = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            return False
        prefix = ["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "iverilog"]):
        try:
            done = subprocess.run(
                [*prefix, *command], env=environment, capture_output=True, text=True, timeout=600
            )
        except subprocess.TimeoutExpired:
            print(f"{' '.join(command)} took too long", file=sys.stderr)
            return False
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"{' '.join(command)}: {last}", file=sys.stderr)
            if prefix:
                return False
    return has_icarus()


def main() -> int:
    if has_icarus():
        return 0
    print("installing Icarus Verilog", file=sys.stderr)
    if not install():
        print(
            "\n*** Icarus Verilog is not installed and could not be: its runs will be SKIPPED.\n"
            f"*** {ICARUS_ADVICE}\n",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
