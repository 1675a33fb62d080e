"""The virtual environment ``.venv``: ComfyUI's packages and the pack's, at pinned versions."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import pins
from .errors import SetupError
from .packages import broken_packages, run_pip, site_packages
from .progress import Progress

FOLDER = ".venv"
STAMP = "stepwise-setup.json"  # written last: without it the set-up is not finished
LOG = "stepwise-pip.log"
ATTEMPTS = 2


def python_in(venv: Path, windows: bool = os.name == "nt") -> Path:
    """Where a virtual environment keeps its Python."""
    return venv / "Scripts" / "python.exe" if windows else venv / "bin" / "python"


def runs(python: Path, *arguments: str) -> bool:
    """Whether this Python exists, is new enough, and runs ``arguments`` without an error."""
    command = [str(python), *(arguments or ("-c", "import sys; sys.exit(sys.version_info < (3, 10))"))]
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def ensure_python(root: Path, repair: bool = False) -> Path:
    """A virtual environment with a Python that runs and has pip; packages that are already in it stay."""
    venv = root / FOLDER
    python = python_in(venv)
    if not runs(python):
        _make(venv, clear=venv.exists())
    elif (repair or not read_stamps(venv)) and not runs(python, "-m", "pip", "--version"):
        _make(venv, clear=False)
    return python


def _make(venv: Path, clear: bool) -> None:
    command = [sys.executable, "-m", "venv", *(["--clear"] if clear else []), str(venv)]
    with Progress(f"making {venv.name} with Python {sys.version.split()[0]}"):
        made = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if made.returncode:
        words = f"{made.stdout}{made.stderr}".strip()
        hint = f" On Debian or Ubuntu: apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv" if "ensurepip" in words else ""
        raise SetupError(f"could not make the virtual environment {venv}:\n{words}\nEnd programs that use it and run the command again.{hint}")


def ensure_packages(root: Path, name: str, requirements: Sequence[str], what: str, repair: bool = False) -> None:
    """Install ``requirements``; quick when ``name`` was installed before from the same requirements and pins."""
    venv = root / FOLDER
    digest = digest_of(requirements)
    if not repair and read_stamps(venv).get(name) == digest:
        return
    python = python_in(venv)
    wanted, limits = venv / f"stepwise-{name}.txt", venv / "stepwise-constraints.txt"
    wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    limits.write_text(pins.constraints_text(), encoding="utf-8")
    with Progress(what) as progress:
        for _ in range(ATTEMPTS):
            _forget_broken(venv, progress)
            run_pip(python, ["install", "-r", str(wanted), "-c", str(limits)], progress, venv / LOG)
            if not broken_packages(site_packages(python)):
                break
        else:
            raise SetupError(f"packages in {venv} stay incomplete. Is the disk full, or does a virus scanner remove files? Delete that folder and try again.")
    write_stamps(venv, {**read_stamps(venv), name: digest})


def _forget_broken(venv: Path, progress: Progress) -> None:
    """A package cut short by an interrupted run counts as installed until it is forgotten."""
    broken = broken_packages(site_packages(python_in(venv)))
    if broken:
        write_stamps(venv, {})
        progress.note("repairing " + ", ".join(info.name for info in broken))
    for info in broken:
        shutil.rmtree(info)


def requirement_lines(text: str, without: frozenset[str] = frozenset()) -> list[str]:
    """The requirements in a requirements.txt, comments and the packages named in ``without`` left out."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line and name_of(line) not in without]


def name_of(requirement: str) -> str:
    """The package's name in its one normal spelling."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def digest_of(requirements: Sequence[str]) -> str:
    return hashlib.sha256("\n".join([*requirements, pins.constraints_text()]).encode("utf-8")).hexdigest()


def read_stamps(venv: Path) -> dict[str, str]:
    """Digest of what was installed last, by the name of the set of packages."""
    try:
        return json.loads((venv / STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def write_stamps(venv: Path, stamps: dict[str, str]) -> None:
    part = venv / f"{STAMP}.part"
    part.write_text(json.dumps(stamps), encoding="utf-8")
    os.replace(part, venv / STAMP)
