"""Pages in a headless Chromium, without a network."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CACHES = (".cache/chromium-headless", ".cache/ms-playwright")


def browser() -> str:
    found = [path for name in NAMES if (path := shutil.which(name))]
    for folder in CACHES:
        for name in ("chrome-headless-shell", "headless_shell", "chrome"):
            found += map(str, sorted((Path.home() / folder).rglob(name)))
    found = [path for path in found if os.access(path, os.X_OK) and Path(path).is_file()]
    if not found:
        pytest.skip("Chromium is not installed; install it with: apt-get install chromium")
    return found[0]


def run_browser(path: Path, width: int, *options: str) -> tuple[str, list[str]]:
    """The page's tree as text once its scripts have run, and what the console says."""
    done = subprocess.run(
        [
            browser(),
            *("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *("--allow-file-access-from-files", f"--user-data-dir={path.parent / 'profile'}"),
            *(f"--window-size={width},2000", "--virtual-time-budget=5000", "--dump-dom"),
            # A proxy that refuses everything: the page must not need a network.
            *("--proxy-server=127.0.0.1:9", *options, path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def framed(path: Path, width: int, probe: Path, *options: str) -> tuple[list[str], list[str]]:
    """Lines that a script says of a page in a frame, and what the console says.

    probe
        The script, which finds the frame by the id ``page`` and writes into the element ``said``.
    """
    assert path.exists()
    around = path.with_name(f"around{width}_{path.name}")
    # A frame has exactly this width; the window of a headless browser is not always so narrow.
    around.write_text(
        f'<!doctype html><meta charset="utf-8"><pre id="said"></pre>'
        f"<script>{probe.read_text()}</script>"
        f'<iframe id="page" src="{path.name}" style="width:{width}px;height:1900px;border:0">'
        "</iframe>"
    )
    tree, console = run_browser(around, 1400, *options)
    found = re.search(r'<pre id="said">(.*?)</pre>', tree, re.S)
    assert found is not None
    return found[1].splitlines(), console
