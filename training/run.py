"""The trainer's loop: take the oldest experience, train, commit, repeat.

    experience -> update -> version          one LoRA version for each experience, committed whole or not at all

Left out on purpose: no rollouts, no prompts, no rewards here. The graph makes experience; this process turns it into
versions. It holds no state that is not on disk: stop it at any moment and start it again.
"""

import logging
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .base import Unfit
from .config import Job
from .experience import NewerFormat, UnreadableExperience
from .graph_run import DroppedExperience, GraphRun, job_of, open_run
from .heartbeat import Heartbeat
from .job import FOLDER, RunFolder, all_runs, read_json
from .update import RefusedExperience

log = logging.getLogger("stepwise_grpo")
POLL = 0.05  # seconds between looks into the inboxes
PATIENCE = 10.0  # seconds a run rests after a failure that may pass, such as a full disk


def run(output: Path, open_policy: Callable[[Job], Any], until: Callable[[], bool] = lambda: False) -> None:
    """Serve all runs of an output folder until ``until()``. A second trainer on the same folder is refused."""
    folder = Path(output) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "trainer.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SystemExit(f"{_other_trainer(folder)} already serves {output}. Close it first, or leave this to it.") from None
    with lock, Heartbeat(folder):
        serve(output, open_policy, until)


def serve(output: Path, open_policy: Callable[[Job], Any], until: Callable[[], bool]) -> None:
    """The loop."""
    trainer = Trainer(open_policy)
    resting: dict[str, float] = {}  # runs that failed, until when they rest; the others go on
    log.info("waiting for experience in %s", Path(output) / FOLDER)
    while not until():
        found = oldest_experience(output, {run for run, end in resting.items() if time.monotonic() < end})
        if found is None:
            time.sleep(POLL)
            continue
        folder, path = found
        try:
            settle(trainer, folder, path)
        except Exception as error:
            # A full disk, a base model that is gone, too little memory: the experience stays queued, and we try again.
            expected = isinstance(error, (ValueError, OSError))
            log.error("%s: %s%s", folder.name, error, "" if expected else f"\n{traceback.format_exc()}")
            report(folder, phase="waiting", message=f"{error}; trying again in {PATIENCE:.0f} s, nothing is lost")
            trainer.forget()
            resting[folder.name] = time.monotonic() + PATIENCE


def settle(trainer: "Trainer", folder: RunFolder, path: Path) -> None:
    """Train on an experience, or put it aside with the reason when it can never be trained on."""
    try:
        trainer.take(folder, path)
    except Unfit as error:
        fixed = "" if folder.latest() is None else ". Then choose another run_name: this run keeps its settings"
        set_aside(folder, path, "rejected", Unfit(f"{error}{fixed}"))
    except (RefusedExperience, UnreadableExperience, NewerFormat) as error:
        set_aside(folder, path, "rejected", error)
    except DroppedExperience as error:
        set_aside(folder, path, "dropped", error)


class Trainer:
    """The runs that are open and the one model in memory."""

    def __init__(self, open_policy: Callable[[Job], Any]) -> None:
        self._open_policy = open_policy
        self._job: Job | None = None
        self._policy: Any = None
        self._run: GraphRun | None = None

    def take(self, folder: RunFolder, path: Path) -> None:
        """Train on one experience of a run and remove it from the inbox."""
        id = path.stem.split("-")[-1]
        run = self._open(folder)
        if id not in run.used:
            report(folder, phase="training", message=f"training version {run.version + 1}", version=run.version)
            event = run.train(path, id, lambda memory: announce(folder, run, memory))
            log.info("%s v%d: reward %.3f, clip fraction %.2f, %.1f s", folder.name, run.version, event["reward_mean"], event["clip_fraction"], event["seconds"])
        path.unlink(missing_ok=True)
        report(folder, phase="waiting", message="", version=run.version)

    def forget(self) -> None:
        """Drop the open run, so that the next experience starts from what is on disk."""
        self._run = None

    def _open(self, folder: RunFolder) -> GraphRun:
        latest = (folder.latest() or {}).get("digest", "")
        if self._run is None or self._run.folder.path != folder.path or self._run.digest != latest or self._run.job != job_of(folder):
            report(folder, phase="loading", message="loading the base model")
            self._run = None  # lets go of its model, so that only one is in memory
            self._run = open_run(folder, self._policy_for)
        return self._run

    def _policy_for(self, job: Job) -> Any:
        if job != self._job:
            self._policy = self._job = None  # one base model in memory
            self._policy, self._job = self._open_policy(job), job
        return self._policy


def oldest_experience(output: Path, resting: set[str]) -> tuple[RunFolder, Path] | None:
    """The experience that has waited longest over all runs but the resting ones."""
    waiting = [(path.name, folder, path) for folder in all_runs(output) if folder.name not in resting for path in folder.waiting()[:1]]
    if not waiting:
        return None
    _, folder, path = min(waiting, key=lambda entry: entry[0])
    return folder, path


def announce(folder: RunFolder, run: GraphRun, memory: str) -> None:
    log.info("%s v%d: %s", folder.name, run.version + 1, memory)
    report(folder, phase="training", message=f"training version {run.version + 1} ({memory})", version=run.version)


def set_aside(folder: RunFolder, path: Path, kind: str, error: Exception) -> None:
    log.warning("%s: experience %s: %s", folder.name, kind, error)
    folder.put_aside(path, kind, str(error))
    report(folder, phase="waiting", message=f"{kind}: {error}")


def report(folder: RunFolder, **status: Any) -> None:
    """Say what the trainer does with a run. A disk too full to say it must not stop the trainer."""
    try:
        folder.write_status(**status)
    except OSError as error:
        log.error("cannot write the status of %s: %s", folder.name, error)


def _other_trainer(folder: Path) -> str:
    other = read_json(folder / "trainer.json") or {}
    return f"A trainer (process {other.get('pid', '?')} on {other.get('host', '?')})"
