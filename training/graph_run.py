"""A run that lives on what the graph queues: one experience, checked, becomes one version."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import lora
from .config import STALENESS_LIMIT, Job, from_json
from .experience import Experience, unpack
from .faults import may_pass
from .job import RunFolder, digest_of, retry_sharing
from .live_run import Lesson, LiveRun, facts
from .optimiser import class_of, follow_weights
from .selfcheck import probe_of
from .update import RefusedExperience, choose_rows, update


class DroppedExperience(ValueError):
    """An experience that came too late; the message says by how much."""


class GraphRun(LiveRun):
    """A ``LiveRun`` that is fed with experience files."""

    def train(self, path: Path, id: str, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
        """One experience -> one version; returns its event. Raises Refused-, Dropped- or UnreadableExperience.

        ``say`` is called with what was decided about memory before the update begins.
        """
        experience = unpack(path)
        self._check(experience)
        behaviour = self._behaviour(experience)
        return self.step(experience.settings, id, lambda optimiser: self._learn(experience, behaviour, optimiser, say))

    def _learn(self, e: Experience, behaviour: dict[str, Tensor] | None, optimiser: torch.optim.Optimizer, say: Callable[[str], None]) -> Lesson:
        try:
            e, fit = choose_rows(self.policy, e)
            self.prove(probe_of(e, fit.beside_weights))
            say(fit.message)
            rows = e.settings.rows_per_call
            shape = [rows if e.cfg == 1 else 2 * rows, *e.states.shape[2:]]
            with self.policy.prompts(e.conditioning, e.negative, e.cfg, shape, memory=fit.beside_weights):
                follow_weights(optimiser)
                metrics = update(self.policy, optimiser, e, seed=self.version, behaviour=behaviour)
        except (RuntimeError, AssertionError, IndexError, KeyError, TypeError) as error:
            if may_pass(error):
                raise
            raise RefusedExperience(f"the model cannot compute with it: {error}") from error
        memory = {"rows_per_call": rows, "memory_estimate_bytes": fit.estimate, "memory_peak_bytes": self.policy.peak_bytes()}
        return Lesson(_about(e), e.texts, {**metrics, **memory}, e.picture)

    def _check(self, e: Experience) -> None:
        if e.job != self.job:
            raise RefusedExperience("it was made for another base model, targets, rank or alpha than this run trains")
        if e.origin.version > self.version:
            raise RefusedExperience(f"it was rolled out with version {e.origin.version}, but the run is at version {self.version}")
        if self.back is not None and e.origin.version < self.back["version"]:
            raise DroppedExperience(f"it was made before the run went back to version {self.back['back_to']}")
        if self.version - e.origin.version > STALENESS_LIMIT:
            raise DroppedExperience(f"it was rolled out with version {e.origin.version}, the run is at {self.version}: more than {STALENESS_LIMIT} versions old")

    def _behaviour(self, e: Experience) -> dict[str, Tensor] | None:
        """Weights of the version that made the experience, or None when it is the current one."""
        if e.origin.version == self.version:
            if e.origin.version and e.origin.digest != self.digest:
                raise RefusedExperience(f"its version {e.origin.version} is not the one this run has")
            return None
        if e.origin.version == 0:
            return self.policy.first_weights()
        try:
            data = retry_sharing(self.folder.version_file(e.origin.version).read_bytes)
        except FileNotFoundError:
            raise RefusedExperience(f"the file of version {e.origin.version}, which made it, is gone") from None
        if digest_of(data) != e.origin.digest:
            raise RefusedExperience(f"its version {e.origin.version} is not the one this run has")
        return lora.load(data)


def _about(e: Experience) -> dict[str, Any]:
    about = {key: e.about.get(key) for key in ("seed", "credit", "evaluations", "zero_variance_groups")}
    return {**facts(e.rewards, e.schedule, e.settings, e.origin.version), **about, "rollout_seconds": e.about.get("seconds")}


def job_of(folder: RunFolder) -> Job:
    """What the run trains, as its job.json says."""
    known = folder.job()
    if known is None:
        raise ValueError(f"job.json of the run {folder.name!r} is gone; choose another run name, or put it back")
    return from_json(Job, known)


def open_run(folder: RunFolder, policy_for: Any) -> GraphRun:
    """The run as its files say. ``policy_for(job)`` gives the model, kept between runs of one base."""
    job = job_of(folder)
    class_of(job.optimiser)  # a missing package is told before a model is loaded
    return GraphRun(folder, job, policy_for(job))
