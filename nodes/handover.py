"""One iteration from the graph to the trainer: checked, queued, waited for."""

import errno
import os
import shlex
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import folder_paths

from ..training import control
from ..training.config import STALENESS_LIMIT, Job, UpdateSettings, to_json
from ..training.defaults import named
from ..training.experience import pack
from ..training.job import RunFolder, read_json
from ..training.trajectory import Credit, Trajectory
from .convert import make_room_for_trainer
from .progress import Progress
from .recommended import choice, filled
from .validate import as_trained

POLL = 0.1  # seconds
STAGES = {"loading": 1, "training": 2}  # phases of a run, as far as the bar has come
PACK = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Result:
    """What the trainer node shows: the newest version, its name in the stock loaders, the update's metrics, and a sentence."""

    version: int
    lora_name: str
    note: str
    metrics: dict[str, Any] = field(default_factory=dict)


def hand_over(node: Any, trajectory: Trajectory, credit: Credit, run_name: str, widgets: dict[str, Any], wait: bool) -> Result:
    """Queue the experience; with ``wait`` return when its version is there. ``widgets``: the settings of job and update."""
    run = RunFolder(Path(folder_paths.get_output_directory()), run_name)
    progress = Progress(node, 1)
    check(trajectory, credit, run)
    row = named(trajectory.architecture)
    values = filled(widgets, row, run.job() or {})
    job, settings = settings_of(trajectory, values)
    try:
        run.agree_on_job(to_json(job))
        id = run.queue(pack(trajectory, credit, job, settings))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise RuntimeError(f"no space left on the disk of {run.output}: this iteration was not queued; make room and queue again") from None
        raise
    if wait and settings.share_gpu and run.trainer_is_alive():
        make_room_for_trainer()
    fate = wait_for(run, id, progress) if wait else None
    result = outcome(run, fate, wait)
    result = replace(result, note="\n".join(filter(None, (result.note, result.metrics and nothing_learnt(trajectory, credit), choice(widgets, values, row)))))
    progress.announce(result.note)
    return result


def nothing_learnt(trajectory: Trajectory, credit: Credit) -> str:
    """A sentence where no group could teach anything; empty otherwise."""
    if credit.zero_variance_groups < len(trajectory.prompts):
        return ""
    return "Nothing was learnt: in every group all pictures scored the same. Is this the right reward for this model?"


def settings_of(trajectory: Trajectory, widgets: dict[str, Any]) -> tuple[Job, UpdateSettings]:
    """The run's job and the settings of this update, from the node's widgets, none of them automatic any more."""
    of_job = {"targets": widgets["targets"], "pattern": widgets["target_pattern"], **{key: widgets[key] for key in ("rank", "alpha", "optimiser")}}
    of_update = {key: value for key, value in widgets.items() if key not in (*of_job, "target_pattern")}
    return Job(base=trajectory.base, start=trajectory.origin.start, **of_job), UpdateSettings(**of_update)


def check(trajectory: Trajectory, credit: Credit, run: RunFolder) -> None:
    """``ValueError`` with the remedy unless the trainer can learn from this."""
    origin = trajectory.origin
    if credit.advantages.shape != trajectory.velocities.shape[:2] or (credit.schedule, credit.seed) != (trajectory.schedule, trajectory.seed):
        raise ValueError("credit belongs to another trajectory: connect Tweedie Preview & Reward to the same Stepwise SDE Sampler as this node")
    if not trajectory.schedule.stochastic:
        raise ValueError("no step of the trajectory is random, so there is nothing to learn: raise eta above 0 in Stepwise SDE Sampler")
    if trajectory.base is None:
        raise ValueError("the trainer cannot tell which file this model came from: load it with Base Model, Demo Model, Load Diffusion Model or Load Checkpoint")
    as_trained(origin, "training")
    if origin.loras and origin.run != run.name:
        raise ValueError(f"Live LoRA uses the run {origin.run!r}, this node trains {run.name!r}: set run_name to the same name in both")
    newest = (run.latest() or {}).get("version", 0)
    if origin.loras and origin.version + STALENESS_LIMIT < newest:
        back = f", or go back to version {origin.version} in the Stepwise GRPO panel" if origin.version else ", or choose another run_name for a new run"
        raise ValueError(f"Live LoRA has version {origin.version} on the model, but the run {run.name!r} is at version {newest} and training goes on from there: set version to -1 in Live LoRA{back}")
    if not origin.loras and newest:
        raise ValueError(f"run {run.name!r} has versions already, but the model has none of them: put Live LoRA with this run_name between the loader and the sampler, or choose another run_name")


def wait_for(run: RunFolder, id: str, progress: Progress) -> dict[str, Any] | None:
    """What became of the experience, or None when nobody will take it soon: no trainer, or a paused run, which must not hold ComfyUI's queue."""
    while (fate := run.fate(id)) is None:
        status = read_json(run.path / "status.json") or {}
        phase = status.get("phase")
        if not run.trainer_is_alive() or (control.is_paused(run) and phase not in STAGES):
            return None
        progress.to(STAGES.get(phase, 0), 3)
        progress.say((phase != "paused" and status.get("message")) or "waiting for the trainer")
        progress.check()
        time.sleep(POLL)
    progress.to(3, 3)
    return fate


def outcome(run: RunFolder, fate: dict[str, Any] | None, wait: bool) -> Result:
    """A rejected experience is an error; everything else has a note."""
    if fate is not None and "rejected" in fate:
        raise RuntimeError(f"the trainer refused this iteration: {fate['rejected']}")
    version = (run.latest() or {}).get("version", 0)
    name = run.lora_name(version) if version else ""
    if fate is None:
        return Result(version, name, queued(run, wait))
    if "dropped" in fate:
        return Result(version, name, f"This iteration came too late and was not used: {fate['dropped']}")
    return Result(fate["version"], run.lora_name(fate["version"]), summary(run, fate), fate)


def summary(run: RunFolder, event: dict[str, Any]) -> str:
    line = f"{run.name} version {event['version']}: reward {event['reward_mean']:.3f}, {event['clip_fraction']:.0%} clipped, trained in {event['seconds']:.1f} s"
    if event["graph_density_error"] > event["clip"] / 10:
        line += f". Graph and trainer compute this model a little differently (velocity off by up to {event['graph_velocity_error']:.2%}): learning is noisier. If a model or LoRA file was replaced while ComfyUI ran, restart ComfyUI"
    return line


def queued(run: RunFolder, wait: bool) -> str:
    count = len(run.waiting())
    line = f"Queued for the trainer ({count} waiting)."
    if control.is_paused(run):
        return f"{line} {control.PAUSED}"
    if not wait and run.trainer_is_alive():
        return line
    return f"{line} No trainer answers: it is not running, or its disk is full. Start it and leave it open; nothing is lost. The command is in the sidebar tab Stepwise GRPO too:\n{command(run.output)}"


def command(output: Path) -> str:
    """What to type to start the trainer, quoted for this system's command line."""
    words = [sys.executable, str(PACK / "training"), "--output", str(output)]
    return " ".join(f'"{word}"' for word in words) if os.name == "nt" else shlex.join(words)


