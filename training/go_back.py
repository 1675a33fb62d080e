"""Going back to an earlier version: its weights become the newest version, as ``git revert`` does. Nothing is removed.

Going back from version 30 to 12 commits version 31 with the weights and the picture of 12, a fresh optimiser and no average.
It works on files: no model is loaded. It is committed in the order of every version, so a crash leaves the old version in
force and the request in its folder, and doing it again gives the same bytes.
"""

import json
import logging
import time
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from . import control, lora
from .config import Job, from_json
from .graph_run import job_of
from .job import RunFolder, read_json, retry_sharing
from .live_run import pack_state, write_version
from .status import rest

log = logging.getLogger("stepwise_grpo")


class CannotGoBack(ValueError):
    """The run stays where it is; the message says why."""


def answer_alone(folder: RunFolder, request: Path) -> None:
    """``answer``, unless a process of its own trains the run headless."""
    try:
        with FileLock(folder.path / "trainer.lock").acquire(timeout=0):
            answer(folder, request)
    except Timeout:
        raise ValueError(f"the run {folder.name!r} is being trained headless") from None


def answer(folder: RunFolder, request: Path) -> None:
    """Do what a file in requests/ asks, or say why it cannot be done; then the file is removed."""
    if not request.is_file():
        return  # taken back since it was listed
    id = f"back-{request.stem.split('-')[0]}"
    try:
        if all(event["experience"] != id for event in folder.events()):  # else a crash came between commit and removal
            version = wanted(request)
            event = go_back(folder, version, id)
            log.info("%s went back to version %d, which is version %d now", folder.name, version, event["version"])
            rest(folder, f"Went back: version {event['version']} has the weights of version {version}", version=event["version"])
    except CannotGoBack as error:
        log.warning("%s stays at its version: %s", folder.name, error)
        rest(folder, f"Did not go back: {error}")
    retry_sharing(lambda: request.unlink(missing_ok=True))


def wanted(request: Path) -> int:
    """The version that a request names."""
    try:
        asked = read_json(request)
    except ValueError:
        asked = None
    version = asked.get("version") if isinstance(asked, dict) and asked.get("kind") == "go_back" else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise CannotGoBack(f"the request {request.name} is damaged; ask again")
    return version


def go_back(folder: RunFolder, version: int, id: str) -> dict[str, Any]:
    """Commit the weights of ``version`` as the newest one; its event."""
    if reason := control.why_not_back(folder, version):
        raise CannotGoBack(reason)
    job = job_of(folder)
    weights, about = read_version(folder, version, job)
    new = folder.latest()["version"] + 1
    data = lora.save(weights, job, {**about, "run": folder.name, "version": new, "back_to": version})
    picture = folder.picture_file(version)
    event = {"version": new, "back_to": version, "experience": id, "at": time.time()}
    write_version(folder, event, data, pack_state(new, weights), retry_sharing(picture.read_bytes) if picture.is_file() else None)
    return event


def read_version(folder: RunFolder, version: int, job: Job) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of a version file of this run, and what it says about itself besides its job."""
    file = folder.version_file(version)
    data = retry_sharing(file.read_bytes)
    try:
        about = json.loads(lora.metadata_of(data)["stepwise_grpo"])
        weights, of = lora.load(data), from_json(Job, about.pop("job"))
    except Exception as error:  # a damaged file fails in many ways
        raise CannotGoBack(f"{file} is damaged ({type(error).__name__}); put it back, or choose another version") from None
    if of != job or about.get("version") != version:
        raise CannotGoBack(f"{file} is not version {version} of this run; put that file back, or choose another version")
    if not all(bool(w.isfinite().all()) for w in weights.values()):
        raise CannotGoBack(f"{file} is damaged (its weights are no numbers); put it back, or choose another version")
    return weights, about
