"""One queued iteration as a safetensors file: the trajectory, its credit, the settings of the update."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from .conditioning import flatten, unflatten
from .config import Job, Origin, UpdateSettings, from_json, to_json
from .core.schedule import Schedule
from .job import retry_sharing
from .picture import check_picture
from .trajectory import Credit, Trajectory

FORMAT = 1
KEY = "stepwise_grpo"


class UnreadableExperience(ValueError):
    """A file that is cut short or not ours; the message says so."""


class NewerFormat(ValueError):
    """A file written by a newer version of the pack."""


@dataclass(frozen=True)
class Experience:
    """What the trainer reads. Shapes as in training/trajectory.py."""

    states: Tensor
    velocities: Tensor
    rewards: Tensor
    advantages: Tensor
    schedule: Schedule
    conditioning: list[list]
    """Entries of each prompt."""
    negative: list
    texts: list[str]
    cfg: float
    origin: Origin
    job: Job
    settings: UpdateSettings
    about: dict[str, Any]
    """For the record: seed, credit scheme, reward, evaluations, seconds of the rollout and preview."""
    picture: Tensor | None = None
    """(h, w, 3), uint8: the best finished picture, to lie beside the version."""

    @property
    def group_size(self) -> int:
        return self.states.shape[1] // len(self.conditioning)


def pack(trajectory: Trajectory, credit: Credit, job: Job, settings: UpdateSettings) -> bytes:
    """The experience as bytes. The same trajectory, credit and settings give the same bytes, hence the same id."""
    tensors = {"states": trajectory.states, "velocities": trajectory.velocities, "rewards": credit.rewards, "advantages": credit.advantages}
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in tensors.items()}
    if credit.picture is not None:
        tensors["picture"] = credit.picture.contiguous()
    prompts = [flatten(prompt.conditioning, f"prompt/{i}", tensors) for i, prompt in enumerate(trajectory.prompts)]
    negative = flatten(trajectory.negative, "negative", tensors)
    schedule = credit.schedule
    meta = {
        "format": FORMAT,
        "schedule": {"times": list(schedule.times), "law": schedule.law, "eta": schedule.eta, "floor_first": schedule.floor_first},
        "prompts": prompts,
        "negative": negative,
        "texts": [prompt.text for prompt in trajectory.prompts],
        "cfg": trajectory.cfg,
        "origin": to_json(trajectory.origin),
        "job": to_json(job),
        "settings": to_json(settings),
        "about": _about(trajectory, credit),
    }
    return safetensors.torch.save(tensors, {KEY: json.dumps(meta, ensure_ascii=False, sort_keys=True)})


def _about(trajectory: Trajectory, credit: Credit) -> dict[str, Any]:
    return {
        "seed": trajectory.seed,
        "credit": credit.scheme,
        "reward": credit.reward,
        "evaluations": trajectory.evaluations + credit.evaluations,
        "zero_variance_groups": credit.zero_variance_groups,
        "seconds": {"rollout": trajectory.seconds, **credit.seconds},
    }


def unpack(path: Path) -> Experience:
    """Read an experience whole. Raises ``UnreadableExperience`` or ``NewerFormat``; loads data, never code."""
    data = retry_sharing(path.read_bytes)
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        meta = json.loads(header["__metadata__"][KEY])
        written = meta["format"]
    except MemoryError:
        raise
    except Exception as error:
        raise UnreadableExperience(f"{path.name} is cut short or not an experience file ({type(error).__name__}: {error})") from error
    if written != FORMAT:
        raise NewerFormat(f"{path.name} has format {written!r}; this trainer reads {FORMAT}. Update the pack and restart the trainer.")
    try:
        return _build(meta, tensors)
    except Exception as error:
        raise UnreadableExperience(f"{path.name} does not hold together: {error}") from error


def _build(meta: dict[str, Any], tensors: dict[str, Tensor]) -> Experience:
    schedule = meta["schedule"]
    experience = Experience(
        states=tensors["states"],
        velocities=tensors["velocities"],
        rewards=tensors["rewards"],
        advantages=tensors["advantages"],
        schedule=Schedule(tuple(schedule["times"]), schedule["law"], schedule["eta"], schedule["floor_first"]),
        conditioning=[unflatten(prompt, tensors) for prompt in meta["prompts"]],
        negative=unflatten(meta["negative"], tensors),
        texts=meta["texts"],
        cfg=meta["cfg"],
        origin=from_json(Origin, meta["origin"]),
        job=from_json(Job, meta["job"]),
        settings=from_json(UpdateSettings, meta["settings"]),
        about=meta["about"],
        picture=tensors.get("picture"),
    )
    _check(experience)
    return experience


def _check(e: Experience) -> None:
    steps, rows = e.schedule.steps, e.states.shape[1]
    expected = {"states": (steps + 1, *e.states.shape[1:]), "velocities": (steps, *e.states.shape[1:]), "rewards": (steps + 1, rows), "advantages": (steps, rows)}
    for name, shape in expected.items():
        found = tuple(vars(e)[name].shape)
        if found != shape:
            raise ValueError(f"shapes do not fit: {name} {found} instead of {shape} in {steps} steps")
    if not e.conditioning or rows % len(e.conditioning) or len(e.texts) != len(e.conditioning):
        raise ValueError(f"{rows} rows do not form groups of {len(e.conditioning)} prompts with {len(e.texts)} texts")
    if e.picture is not None:
        check_picture(e.picture)
    if not e.schedule.stochastic:
        raise ValueError("no step is stochastic, so there is nothing to train on")
    for name, values in {"states": e.states, "velocities": e.velocities, "advantages": e.advantages, "final rewards": e.rewards[-1]}.items():
        if not torch.isfinite(values).all():
            raise ValueError(f"{name} contain NaN or infinity")
