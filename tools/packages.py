"""pip as a child process, and what it leaves behind when it is interrupted."""

import csv
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from . import lock
from .errors import SetupError
from .progress import Progress

LOG_TAIL = 12
OPTIONS = ("--no-input", "--disable-pip-version-check", "--retries", "8")


def run_pip(python: Path, arguments: Sequence[str], progress: Progress, log: Path | None = None) -> None:
    """Run ``pip``; its output goes to ``log`` and, summed up, to the progress line."""
    command, *rest = arguments
    lines: list[str] = []
    child = subprocess.Popen(
        [str(python), "-m", "pip", *OPTIONS, command, "--progress-bar", "off", *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"},
        encoding="utf-8",
        errors="replace",
        pass_fds=lock.to_share(),
    )
    try:
        for line in child.stdout or ():
            lines.append(line)
            note = summary_of(line, python)
            if note:
                progress.note(note)
        child.wait()
    except BaseException:
        child.kill()
        child.wait()
        raise
    finally:
        if log:
            log.write_text("".join(lines), encoding="utf-8")
    if child.returncode:
        raise SetupError(_failure(lines, log))


def summary_of(line: str, python: Path) -> str | Callable[[], str]:
    """The part of a line of pip's output that tells a reader how far it is; empty where there is none."""
    words = line.split()
    if not words:
        return ""
    if words[0] == "Collecting":
        return f"looking for {words[1]}"
    if words[0] in ("Downloading", "Processing") and len(words) > 1:
        name = words[1].replace("\\", "/").rsplit("/", 1)[-1]
        size = " ".join(words[2:4]) if words[2:] and words[2] != "(from" else ""
        return f"getting {name} {size}".rstrip()
    if "Retrying (" in line:
        return "the package index does not answer; trying again"
    if line.startswith("Installing collected packages:"):
        total, before = line.count(",") + 1, _count(python)
        return lambda: f"installing: {min(max(_count(python) - before, 0), total)} of {total} packages"
    return ""


def site_packages(python: Path) -> Path:
    """The site-packages folder of a virtual environment's Python."""
    if python.parent.name == "Scripts":
        return python.parent.parent / "Lib" / "site-packages"
    return next((python.parent.parent / "lib").glob("python3*/site-packages"), python.parent.parent / "lib")


def _count(python: Path) -> int:
    return sum(1 for _ in site_packages(python).glob("*.dist-info"))


def _failure(lines: Sequence[str], log: Path | None) -> str:
    tail = "".join(line for line in lines[-LOG_TAIL:] if line.strip())
    where = f" All of its output: {log}" if log else ""
    return f"pip could not install what is needed. Its last lines:\n{tail}Check the network and the free disk space, then run the same command again.{where}"


def broken_packages(folder: Path) -> list[Path]:
    """The .dist-info folders in site-packages whose packages have files missing or cut short."""
    return sorted(info for info in folder.glob("*.dist-info") if not is_whole(info))


def is_whole(info: Path) -> bool:
    """Whether every file that a package's RECORD lists is there with the size it gives."""
    try:
        with (info / "RECORD").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
        return all((info.parent / name).stat().st_size == int(size or (info.parent / name).stat().st_size) for name, _, size in rows)
    except (OSError, ValueError):
        return False
