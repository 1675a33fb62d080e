"""What an artist asks of a run or of the trainer, as small files in their folders. Standard library only.

The page's routes write them; the trainer reads them. Each may be written or removed while nobody else runs.
"""

# <output>/stepwise_grpo/stop                     the trainer ends after the running update
# <output>/stepwise_grpo/<run>/paused             the inbox is left alone while it is there
# <output>/stepwise_grpo/<run>/requests/*.json    {"kind": "go_back", "version": 12}
# <output>/stepwise_grpo/<run>/notes.json         {"run": text, "12": text of version 12}

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from .job import FOLDER, RunFolder, is_alive, read_json, retry_sharing, write_json, write_whole

PAUSED = "This run is paused: press Resume in the Stepwise GRPO panel to go on. Nothing is lost."
NOTE_LETTERS = 4000
_notes_lock = threading.Lock()  # two pages may write a note at once


def stop_file(output: Path) -> Path:
    return Path(output) / FOLDER / "stop"


def stop_is_asked(output: Path) -> bool:
    return os.path.isfile(stop_file(output))  # Path.is_file may raise where a folder is locked


def ask_to_stop(output: Path) -> None:
    write_whole(stop_file(output), b"")


def forget_stop(output: Path) -> None:
    """A wish of earlier days must not end the next trainer."""
    if stop_is_asked(output):
        retry_sharing(lambda: stop_file(output).unlink(missing_ok=True))


def forget_torn_files(runs: list[RunFolder]) -> None:
    """Remove what a killed trainer left half-written. Only a trainer writes into these folders, and the caller is the only one."""
    for folder in (folder for run in runs if not is_headless_now(run) for folder in (run.loras, run.state)):
        for part in folder.glob(".*.part"):
            part.unlink(missing_ok=True)


def paused_file(run: RunFolder) -> Path:
    return run.path / "paused"


def is_paused(run: RunFolder) -> bool:
    return os.path.isfile(paused_file(run))


def pause(run: RunFolder, on: bool) -> None:
    """Leave the run's inbox alone from the next experience on, or go on with it."""
    if on:
        write_whole(paused_file(run), b"")
    else:
        retry_sharing(lambda: paused_file(run).unlink(missing_ok=True))


def requests(run: RunFolder) -> list[Path]:
    """What was asked of the run and not done yet, oldest first."""
    return sorted(path for path in (run.path / "requests").glob("*.json") if not path.name.startswith("."))


def ask_to_go_back(run: RunFolder, version: int | None) -> None:
    """Ask the trainer to go back to ``version``, in place of whatever was asked before; None only takes that back."""
    earlier = requests(run)
    if version is not None:
        write_json(run.path / "requests" / f"{time.time_ns():020d}-go_back.json", {"kind": "go_back", "version": version})
    for path in earlier:
        retry_sharing(partial(path.unlink, missing_ok=True))


def why_not_back(run: RunFolder, version: int) -> str:
    """Why a run cannot go back to ``version``, in a sentence; empty where it can, as far as the names of files tell."""
    newest = (run.latest() or {}).get("version", 0)
    if not newest:
        return f"the run {run.name!r} has no version yet, so there is nothing to go back to"
    if version == newest:
        return f"version {version} is the newest already"
    if not 0 < version < newest:
        return f"the run {run.name!r} has no version {version} to go back to; its versions are 1 to {newest}"
    if not run.version_file(version).is_file():
        return f"the file of version {version} is gone from {run.loras}; put it back, or choose another version"
    return ""


def is_headless_now(run: RunFolder) -> bool:
    """Whether a process of its own trains this run at this moment: ``python training headless``."""
    try:
        return is_alive(run.path)
    except (ValueError, TypeError, AttributeError):  # a damaged heartbeat is none
        return False


def notes(run: RunFolder) -> dict[str, str]:
    """Texts by "run" or by the number of a version."""
    path = run.path / "notes.json"
    try:
        found = read_json(path) or {}
    except ValueError:
        raise ValueError(f"{path} is damaged; put it back or move it away") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} does not hold notes; put it back or move it away")
    return {key: text for key, text in found.items() if isinstance(text, str)}


def write_note(run: RunFolder, version: int | None, text: str) -> dict[str, str]:
    """Set the note of a version, or of the run (None); an empty text removes it. All notes as they are now."""
    key = "run" if version is None else str(version)
    with _notes_lock:
        now: dict[str, Any] = {**notes(run), key: text}
        now = {key: text for key, text in now.items() if text}
        write_json(run.path / "notes.json", now)
    return now
