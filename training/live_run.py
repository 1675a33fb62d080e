"""One run in the trainer's hands: its weights, optimiser and version, and the order in which a version is committed.

Commit: picture, version file, state file, event, then latest.json. The pointer moves last and is the commit; until then a crash
leaves the old version in force and the experience queued, and doing the update again gives the same bits. After it the
experience is known by its id and only removed.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from . import lora
from .config import Job, UpdateSettings
from .core.schedule import Schedule
from .job import RunFolder, digest_of, retry_sharing, write_json, write_whole
from .optimiser import follow_weights, make_optimiser, set_state, state_tensors
from .picture import png
from .selfcheck import Probe, examine, refusal
from .update import RefusedExperience


@dataclass(frozen=True)
class Lesson:
    """What a version was made of, beside the weights themselves."""

    facts: dict[str, Any]
    """For the event: rewards and how they came about."""
    texts: list[str]
    """The prompts."""
    metrics: dict[str, Any]
    """Of the update."""
    picture: Tensor | None = None
    """(H, W, 3) uint8: the best one, for LoRA managers."""


class LiveRun:
    """The committed state of a run in memory. ``policy`` is ``ComfyPolicy`` or anything that has its methods.

    Of several processes that train one run together only one ``writes``; the others go through the same versions in memory.
    """

    def __init__(self, folder: RunFolder, job: Job, policy: Any, writes: bool = True) -> None:
        self.folder, self.job, self.policy, self.writes = folder, job, policy, writes
        events = folder.events()
        self.used = {event["experience"] for event in events}
        self.back = next((event for event in reversed(events) if "back_to" in event), None)
        """The event of the last going back: what was made before it is another run's past."""
        self._proven = False
        self.restore()

    def restore(self) -> None:
        """Go to the last committed version: weights, optimiser, EMA, bit for bit. Version 0 is what the policy begins with."""
        latest = self.folder.latest()
        self.version = 0 if latest is None else latest["version"]
        self.digest = "" if latest is None else latest["digest"]
        self.optimiser, self.ema = None, None
        if latest is None:
            self.policy.set_weights(self.policy.first_weights())
            return
        self._load_state(retry_sharing(state_file(self.folder, self.version).read_bytes))

    def step(self, settings: UpdateSettings, id: str, work: Callable[[torch.optim.Optimizer], Lesson]) -> dict[str, Any]:
        """One version by ``work(optimiser)``, which moves the policy; its event. Whatever goes wrong, the run is back at its last version."""
        if self.optimiser is None:
            self.optimiser = make_optimiser(self.policy, kind=self.job.optimiser)
        try:
            lesson = work(self.optimiser)
            self._average(settings.ema)
        except BaseException:
            self.restore()
            raise
        finally:
            if settings.share_gpu:
                self._park()
        return self._commit(lesson, id)

    def prove(self, probe: Probe) -> None:
        """Refuse a model whose gradients are wrong, before its first update since it was loaded. The findings are left in check.json."""
        if self._proven:
            return
        findings = self.policy.findings = self.policy.findings or examine(self.policy, probe)
        if self.writes:
            write_json(self.folder.path / "check.json", {"at": time.time(), "findings": [asdict(finding) for finding in findings]})
        if (reason := refusal(findings)) is not None:
            raise RefusedExperience(f"this model cannot be trained rightly here. {reason}")
        self._proven = True

    def _park(self) -> None:
        """Out of the graphics card before the new version is announced: the graph may want its memory at once."""
        self.policy.park()
        if self.optimiser is not None:
            follow_weights(self.optimiser)

    def _average(self, decay: float) -> None:
        if not decay:
            self.ema = None
            return
        now = self.policy.weights()
        self.ema = {name: w.lerp(now[name], 1 - decay) for name, w in self.ema.items()} if self.ema else now

    def _commit(self, lesson: Lesson, id: str) -> dict[str, Any]:
        version, weights = self.version + 1, self.policy.weights()
        matched, total = self.policy.matched_keys(lora.file_tensors(weights, self.job.alpha, lora.prefix_of(self.job)))
        if matched != total:
            self.restore()
            raise RefusedExperience(f"ComfyUI's loader would recognise only {matched} of {total} layers of the LoRA")
        event = {"version": version, "experience": id, "at": time.time(), "keys_matched": matched, "keys_total": total, **lesson.facts, **lesson.metrics}
        if not all(math.isfinite(value) for value in event.values() if isinstance(value, float)):
            self.restore()
            raise RefusedExperience("its rewards or metrics are too large to be numbers")
        about = {"run": self.folder.name, "version": version, "prompts": lesson.texts, "model": self.policy.model_class}
        data = lora.save(weights, self.job, about)
        if self.writes:
            averaged = lora.save(self.ema, self.job, {**about, "ema": True}) if self.ema else None
            state = pack_state(version, weights, self.ema, self.optimiser)
            write_version(self.folder, event, data, state, None if lesson.picture is None else png(lesson.picture), averaged)
        self.version, self.digest = version, digest_of(data)
        self.used.add(id)
        if self.writes:
            self._forget_old_states()
        return event

    def _load_state(self, data: bytes) -> None:
        tensors = safetensors.torch.load(data)
        part = lambda prefix: {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        self.policy.set_weights(part("weight/"))
        self.ema = part("ema/") or None
        self.optimiser = make_optimiser(self.policy, kind=self.job.optimiser)
        set_state(self.optimiser, part("adam/"))

    def _forget_old_states(self) -> None:
        for path in self.folder.state.glob("v*.safetensors"):
            if path not in (state_file(self.folder, self.version), state_file(self.folder, self.version - 1)):
                path.unlink(missing_ok=True)


def state_file(folder: RunFolder, version: int) -> Path:
    return folder.state / f"v{version:06d}.safetensors"


def pack_state(version: int, weights: dict[str, Tensor], ema: dict[str, Tensor] | None = None, optimiser: torch.optim.Optimizer | None = None) -> bytes:
    """The state file of a version: what training goes on from. Without an optimiser it goes on with a fresh one."""
    tensors = {f"weight/{name}": w for name, w in weights.items()}
    tensors.update({f"ema/{name}": w for name, w in (ema or {}).items()})
    tensors.update({f"adam/{name}": tensor for name, tensor in (state_tensors(optimiser) if optimiser else {}).items()})
    return safetensors.torch.save(tensors, {"stepwise_grpo": json.dumps({"version": version})})


def write_version(folder: RunFolder, event: dict[str, Any], data: bytes, state: bytes, picture: bytes | None = None, averaged: bytes | None = None) -> None:
    """Commit a version: its files, then its event, then the pointer."""
    version = event["version"]
    path = folder.version_file(version)
    for beside, content in ((folder.picture_file(version), picture), (folder.version_file(version, ema=True), averaged)):
        if content is None:
            keep_foreign(beside, b"")  # what a crash or an earlier run left is not this version's
    keep_foreign(path, data)
    if picture is not None:
        write_whole(folder.picture_file(version), picture)
    write_whole(path, data)
    if averaged is not None:
        write_whole(folder.version_file(version, ema=True), averaged)
    write_whole(state_file(folder, version), state)
    folder.append_event(event)
    file = path.relative_to(folder.output).as_posix()
    folder.write_latest({"version": version, "file": file, "digest": digest_of(data), "experience": event["experience"]})


def facts(rewards: Tensor, schedule: Schedule, settings: UpdateSettings, behaviour_version: int) -> dict[str, Any]:
    """What an event tells of ``rewards`` (K + 1, B) and of how they came about."""
    start, final = rewards[0], rewards[-1]
    by_step = rewards.diff(dim=0).abs().mean(1)
    return {
        "behaviour_version": behaviour_version,
        "reward_mean": final.mean().item(),
        "reward_std": final.std(correction=0).item(),
        "reward_start": start.mean().item() if start.isfinite().all() else None,
        "gain_by_step": [gain.item() if gain.isfinite() else None for gain in by_step],
        "law": schedule.law,
        "eta": schedule.eta,
        "clip": settings.clip,
        "pictures": len(final),
    }


def keep_foreign(path: Path, data: bytes) -> None:
    """A file of an earlier run of this name, whose folder was deleted, is put beside and not overwritten."""
    if path.exists() and digest_of(old := path.read_bytes()) != digest_of(data):
        path.replace(path.with_name(f"{path.stem}.replaced-{digest_of(old)[:8]}{path.suffix}"))
