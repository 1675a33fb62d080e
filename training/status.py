"""What the trainer says of a run in its status.json, and how it puts an experience aside."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import control
from .job import RunFolder

log = logging.getLogger("stepwise_grpo")


def report(folder: RunFolder, **status: Any) -> None:
    """Say what the trainer does with a run. A disk too full to say it must not stop the trainer."""
    try:
        folder.write_status(**status)
    except OSError as error:
        log.error("cannot write the status of %s: %s", folder.name, error)


def rest(folder: RunFolder, message: str = "", **status: Any) -> None:
    """Say that nothing is done with a run now: it waits for experience, or is paused."""
    paused = control.is_paused(folder)
    report(folder, phase="paused" if paused else "waiting", message=message or (control.PAUSED if paused else ""), **status)


def tell_pauses(runs: Iterable[RunFolder], told: set[str]) -> set[str]:
    """Say which runs were paused or resumed since ``told``, the names of the paused ones; those of now."""
    now = {run.name for run in runs if control.is_paused(run)}
    for run in runs:
        if (run.name in now) != (run.name in told):
            rest(run)
    return now


def set_aside(folder: RunFolder, path: Path, kind: str, error: Exception) -> None:
    """Move an experience to rejected/ or dropped/ and say why."""
    log.warning("%s: experience %s: %s", folder.name, kind, error)
    folder.put_aside(path, kind, str(error))
    rest(folder, f"{kind}: {error}")
