"""A browser for the browser tests: one that is on this machine, or Debian's, never a private download."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .errors import SetupError
from .progress import Progress

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
    "microsoft-edge",
    "microsoft-edge-stable",
)
REMEDY = (
    "the browser tests need chromium, chrome or msedge on PATH. Install one "
    "(Debian: apt install chromium), or leave these tests out: python dev.py test --no-browser"
)


def find(which: Callable[[str], str | None] = shutil.which) -> str | None:
    """The first browser on PATH, or where Windows and macOS keep them, which is not on PATH."""
    for name in NAMES:
        path = which(name)
        if path:
            return path
    return next((str(path) for path in _usual_places() if path.is_file()), None)


def _usual_places() -> list[Path]:
    if sys.platform == "darwin":
        return [Path(f"/Applications/{name}.app/Contents/MacOS/{name}") for name in ("Chromium", "Google Chrome", "Microsoft Edge")]
    programs = [os.environ[name] for name in ("ProgramFiles", "ProgramFiles(x86)", "LocalAppData") if name in os.environ]
    return [Path(folder, tail) for folder in programs for tail in ("Google/Chrome/Application/chrome.exe", "Microsoft/Edge/Application/msedge.exe")]


def ensure() -> None:
    """Install Debian's chromium where that is ours to do: as root, on Debian, with no browser there. Otherwise do nothing."""
    if find() or not _is_root_on_debian():
        return
    with Progress("installing the package chromium") as progress:
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            progress.note(f"apt-get {arguments[0]}")
            _apt_get(arguments)


def _apt_get(arguments: list[str]) -> None:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["apt-get", "-q", *arguments], env=environ, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        tail = "\n".join(f"{done.stdout}{done.stderr}".strip().splitlines()[-8:])
        raise SetupError(f"apt-get {' '.join(arguments)} failed:\n{tail}\n{REMEDY}")


def _is_root_on_debian() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0 and Path("/etc/debian_version").is_file() and shutil.which("apt-get") is not None
