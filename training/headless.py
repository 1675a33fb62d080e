"""``python training headless CONFIG.json``: the whole loop without ComfyUI, on a diffusers model, in one process or several.

    prompts -> rollout -> previews -> credit -> update -> version        the same verbs as the graph and its trainer

A version is committed like the trainer's, into the same run folder. What is on disk decides where a run goes on: prompts
and noise of an iteration follow from its version alone, so a run that was stopped equals one that was not, bit for bit.
"""

import argparse
import logging
import os
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from .config import to_json
from .control import requests
from .core.advantages import SCHEMES
from .core.schedule import Schedule
from .core.transitions import resolve_eta
from .go_back import answer
from .headless_settings import HeadlessSettings, read_settings
from .heartbeat import Heartbeat
from .iterate import Plan, iterate
from .job import RunFolder
from .live_run import Lesson, LiveRun, facts
from .peers import ALONE, Peers, Processes
from .policy import Decoder, Reward
from .prompts import choose, prompt_lines
from .rewards import make_reward
from .selfcheck import Probe
from .status import report
from .stop import Stop
from .trajectory import Credit, Prompt

log = logging.getLogger("stepwise_grpo")


def main(arguments: list[str]) -> None:
    """Train without ComfyUI, on a diffusers model; with accelerate launch in several processes."""
    parser = argparse.ArgumentParser(prog="python training headless", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="JSON file; docs/headless.md names its settings")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the libraries are imported: nothing may be fetched
    try:
        path = parser.parse_args(arguments).config
        train(path.resolve().parent, read_settings(path), Stop())
    except (ValueError, OSError, torch.OutOfMemoryError) as error:  # RefusedExperience is a ValueError
        raise SystemExit(f"headless: {error}") from None


def train(here: Path, settings: HeadlessSettings, until: Callable[[], bool]) -> None:
    """Take the run from its last version to ``settings.iterations``, or until ``until()``. Paths are relative to ``here``."""
    from .backends.diffusers.loading import find

    source = find(here / settings.model, here / settings.components if settings.components else None, settings.architecture)
    _check_names(settings)
    texts = _prompts(here / settings.prompts)
    reward = make_reward(settings.reward)
    folder, job = RunFolder(here / settings.output, settings.run), settings.job(source.base())
    processes = _processes()
    peers = Processes(processes.device) if processes.num_processes > 1 else ALONE
    _check_processes(processes, peers, min(settings.prompts_per_iteration, len(texts)))
    with _alone_in(folder) if peers.rank == 0 else nullcontext():
        if peers.rank == 0:
            folder.agree_on_job(to_json(job))
            for request in requests(folder):
                answer(folder, request)
            report(folder, phase="loading", message="loading the base model")
        processes.wait_for_everyone()
        headless = Headless(settings, texts, reward, folder, job, source, processes, peers)
        processes.wait_for_everyone()  # all have read the last version before the first one writes the next
        headless.run(until)


class Headless:
    """A run with its model. Every process has one; the first of them writes."""

    def __init__(self, settings: HeadlessSettings, texts: list[str], reward: Reward, folder: RunFolder, job: Any, source: Any, processes: Any, peers: Peers) -> None:
        from .backends.diffusers.model import open_model

        model = open_model(source, settings, job, [*texts, settings.negative], processes)
        *self._conditioning, self._negative = model.conditioning
        self._settings, self._texts, self._reward, self._peers = settings, texts, reward, peers
        self._decode: Decoder = model.decode
        self._plan = Plan(
            schedule=Schedule.of(model.times, settings.law, settings.eta),
            group_size=settings.group_size,
            shape=model.shape,
            cfg=settings.cfg,
            preview=settings.preview_settings(),
            update=settings.update_settings(),
        )
        self._run = LiveRun(folder, job, model.policy, writes=peers.rank == 0)
        if not model.sharded:  # a part of a base cannot be compared with itself in another precision
            self._run.prove(self._probe())

    def _probe(self) -> Probe:
        state = torch.randn(1, *self._plan.shape, generator=torch.Generator("cpu").manual_seed(0))
        return Probe(self._conditioning[:1], self._negative, self._plan.cfg, state, torch.tensor([0.5]))

    def run(self, until: Callable[[], bool]) -> None:
        """Iterations until the last one or until any process was asked to stop."""
        run = self._run
        while run.version < self._settings.iterations and not any(self._peers.largest([float(until())])):
            self._report(phase="training", message=f"training version {run.version + 1}")
            event = run.step(self._plan.update, f"headless-{run.version + 1}", self._iterate)
            if run.writes:
                log.info("%s v%d: reward %.3f, clip fraction %.2f, %.1f s", run.folder.name, run.version, event["reward_mean"], event["clip_fraction"], event["seconds_total"])
        done = run.version >= self._settings.iterations
        if done and run.writes:
            log.info("%s is at version %d of %d; set iterations higher to go on", run.folder.name, run.version, self._settings.iterations)
        self._report(phase="done" if done else "stopped", message="" if done else "start it again to go on")

    def _report(self, **status: Any) -> None:
        if self._run.writes:
            report(self._run.folder, version=self._run.version, **status)

    def _iterate(self, optimiser: torch.optim.Optimizer) -> Lesson:
        settings, version, peers = self._settings, self._run.version, self._peers
        chosen = choose(len(self._texts), settings.prompts_per_iteration, version, settings.seed)
        mine = chosen[len(chosen) * peers.rank // peers.count : len(chosen) * (peers.rank + 1) // peers.count]  # whole groups, never parts of one
        prompts = [Prompt(self._texts[index], index, self._conditioning[index]) for index in mine]
        seed = settings.seed * 1_000_000 + version
        credit, metrics = iterate(self._run.policy, optimiser, self._plan, prompts, self._negative, self._decode, self._reward, seed, peers)
        seconds = {"rollout": metrics.pop("seconds_rollout"), **credit.seconds}
        return Lesson(self._facts(credit, seed, seconds), [self._texts[index] for index in chosen], metrics, credit.picture)

    def _facts(self, credit: Credit, seed: int, seconds: dict[str, float]) -> dict[str, Any]:
        rewards = self._peers.gather(credit.rewards, dim=1)
        (zero,) = self._peers.sum([credit.zero_variance_groups])
        about = {"seed": seed, "credit": credit.scheme, "zero_variance_groups": int(zero), "rollout_seconds": seconds}
        return {**facts(rewards, credit.schedule, self._plan.update, self._run.version), **about}


def _check_names(settings: HeadlessSettings) -> None:
    """``ValueError`` where law, eta or scheme mean nothing, before a model is loaded."""
    resolve_eta(settings.law, settings.eta)
    scheme = settings.preview_settings().scheme
    if scheme not in SCHEMES:
        raise ValueError(f"preview: scheme must be one of {', '.join(SCHEMES)}; got {scheme!r}")


def _prompts(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"prompts: there is no file {path}")
    try:
        return prompt_lines(path.read_text("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"prompts: {path}: {error}") from None


def _processes() -> Any:
    """accelerate's view of this process and the others."""
    try:
        from accelerate import Accelerator
    except ImportError:
        raise ValueError("headless training needs two packages more: python -m pip install diffusers accelerate") from None
    return Accelerator(cpu=not (torch.cuda.is_available() or torch.backends.mps.is_available()))


def _check_processes(processes: Any, peers: Peers, prompts: int) -> None:
    """``ValueError`` where ``prompts`` an iteration cannot be shared by the processes, or where these do not know of each other."""
    logging.getLogger().setLevel(logging.INFO if peers.rank == 0 else logging.WARNING)
    if int(os.environ.get("WORLD_SIZE", "1")) != peers.count:
        raise ValueError(f"{os.environ['WORLD_SIZE']} processes were started, but accelerate connects {peers.count}: its configuration does not fit this machine")
    if prompts < peers.count:
        raise ValueError(f"prompts_per_iteration must be at least the number of processes, {peers.count}; there are {prompts} prompts an iteration")
    if vars(processes.state).get("fsdp_plugin") is not None and prompts % peers.count:
        raise ValueError(f"with FSDP prompts_per_iteration must be a multiple of the number of processes, {peers.count}; there are {prompts} prompts an iteration")


@contextmanager
def _alone_in(folder: RunFolder):
    """The run's lock and its heartbeat; another process that trains it is refused."""
    folder.path.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.path / "trainer.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"another process trains the run {folder.name!r}; stop it first, or choose another run name") from None
    with lock, Heartbeat(folder.path):
        yield
