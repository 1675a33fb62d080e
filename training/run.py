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

from . import control, go_back
from .base import Unfit
from .config import Job
from .experience import NewerFormat, UnreadableExperience
from .graph_run import DroppedExperience, GraphRun, job_of, open_run
from .heartbeat import Heartbeat
from .job import FOLDER, RunFolder, all_runs, read_json
from .status import report, rest, set_aside, tell_pauses
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
    with lock:
        control.forget_stop(output)  # one that an earlier trainer did not live to see
        control.forget_torn_files(all_runs(output))
        try:
            with Heartbeat(folder):
                serve(output, open_policy, lambda: until() or control.stop_is_asked(output))
        finally:
            control.forget_stop(output)


def serve(output: Path, open_policy: Callable[[Job], Any], until: Callable[[], bool]) -> None:
    """The loop."""
    trainer = Trainer(open_policy)
    resting: dict[str, float] = {}  # runs that failed, until when they rest; the others go on
    paused: set[str] = set()
    log.info("waiting for experience in %s", Path(output) / FOLDER)
    while not until():
        runs = all_runs(output)
        paused = tell_pauses(runs, paused)
        found = next_task([run for run in runs if time.monotonic() >= resting.get(run.name, 0)])
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
    """Do what was asked of a run, or train on an experience, or put that aside with the reason when it can never be trained on."""
    try:
        if path.suffix == ".json":
            go_back.answer_alone(folder, path)
        else:
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
        rest(folder, version=run.version)

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


def next_task(runs: list[RunFolder]) -> tuple[RunFolder, Path] | None:
    """What to do next over ``runs``: the first wish to go back, else the experience that has waited longest. Paused runs keep theirs."""
    # A run that another process trains headless is left to it.
    asked = [(path.name, run, path) for run in runs for path in control.requests(run)[:1] if not control.is_headless_now(run)]
    waiting = asked or [(path.name, run, path) for run in runs if not control.is_paused(run) for path in run.waiting()[:1]]
    if not waiting:
        return None
    _, folder, path = min(waiting, key=lambda entry: entry[0])
    return folder, path


def announce(folder: RunFolder, run: GraphRun, memory: str) -> None:
    log.info("%s v%d: %s", folder.name, run.version + 1, memory)
    report(folder, phase="training", message=f"training version {run.version + 1} ({memory})", version=run.version)


def _other_trainer(folder: Path) -> str:
    other = read_json(folder / "trainer.json") or {}
    return f"A trainer (process {other.get('pid', '?')} on {other.get('host', '?')})"
