"""A look at a run: held-out pictures made by the ODE, scored, and filed under the LoRA version that made them."""

import hashlib
import io
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import folder_paths
import numpy as np
import torch
from comfy_api.latest import ui
from PIL import Image
from torch import Tensor

from ..training.conditioning import checked, flatten
from ..training.config import Origin
from ..training.core.noise import initial_noise
from ..training.core.schedule import Schedule
from ..training.job import RunFolder
from ..training.looks import look_picture, read_looks, write_look
from ..training.policy import Reward
from ..training.preview import checked_scores
from ..training.rollout import walk
from ..training.trajectory import Prompt
from . import convert
from .base_model import base_of
from .contact_sheet import paste
from .progress import THROUGH_BOTH, Progress
from .validate import as_trained

LONGER_SIDE = 1024  # px, of a contact picture


@dataclass(frozen=True)
class Shown:
    """What the node gives out: pictures (N, H, W, 3) in [0, 1], their mean reward, and what the page shows."""

    pictures: Tensor
    reward_mean: float
    ui: dict[str, Any]


@dataclass(frozen=True)
class Question:
    """Everything that decides how the pictures of a version look."""

    prompts: tuple[Prompt, ...]
    negative: list
    cfg: float
    schedule: Schedule
    shape: list[int]
    """Of one latent."""
    seed: int


def look_at(
    node: Any, model: Any, vae: Any, positive: list, negative: list, latent: dict, sigmas: list[float], cfg: float, seed: int, every: int, rows_per_call: int, reward: Reward | None
) -> Shown:
    """Look at the version on the model, or show the newest look where ``every`` passes the version over."""
    convert.check_model(model)
    base, origin = base_of(model, node), origin_of_run(model)
    prompts, schedule = convert.prompts_of(positive), Schedule.of(sigmas, "ddim", 0.0)
    question = Question(prompts, checked(negative, "negative"), cfg, schedule, convert.latent_shape(model, latent), seed)
    run, series = RunFolder(Path(folder_paths.get_output_directory()), origin.run), series_of(question, [base, origin.start, reward and reward.spec])
    known = [look for look in read_looks(run, series) if look["version"] <= origin.version]
    progress = Progress(node, len(prompts) * (schedule.steps + 1), THROUGH_BOTH)
    if origin.version % every and known and (pictures := stored_pictures(run, known[-1], len(prompts))) is not None:
        note = f"version {origin.version} is passed over (every {every}); {told(known[-1], known[0])}"
        return shown(node, progress, pictures, known[-1], note)
    pictures, rewards = paint(model, vae, question, rows_per_call, reward, progress)
    look = look_of(origin, question, series, reward, rewards)
    note = told(look, known[0] if known else look) + filed(run, look, pictures)
    return shown(node, progress, pictures, look, note)


def origin_of_run(model: Any) -> Origin:
    """The run and version on the model, or a ``ValueError`` with the remedy."""
    origin = convert.origin_of(model)
    if not origin.loras:
        raise ValueError("there is no run to keep these pictures with: put Live LoRA with the run's name between the loader and this node")
    as_trained(origin, "held-out pictures")
    return origin


def series_of(question: Question, more: Any) -> str:
    """16 hexadecimal digits, equal for two looks exactly when only the version of the LoRA differs."""
    tensors: dict[str, Tensor] = {}
    prompts = [[prompt.text, prompt.index, flatten(prompt.conditioning, str(i), tensors)] for i, prompt in enumerate(question.prompts)]
    negative = None if question.cfg == 1 else flatten(question.negative, "negative", tensors)
    plain = [prompts, negative, question.cfg, question.schedule.times, question.shape, question.seed, more]
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode("utf-8"))
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def paint(model: Any, vae: Any, question: Question, rows_per_call: int, reward: Reward | None, progress: Progress) -> tuple[Tensor, Tensor | None]:
    """Pictures (P, H, W, 3) and their rewards (P,), without any randomness but the seed's."""
    prompts, schedule = question.prompts, question.schedule
    limit = rows_per_call or convert.rows_of_rollout(model, question.shape, question.cfg)
    network = convert.velocity_of(model, prompts, question.negative, question.cfg, limit, progress.tick)
    noise = torch.stack([initial_noise(question.seed, prompt.index, question.shape) for prompt in prompts])
    states = walk(lambda *inputs: network(*inputs).float().cpu(), schedule, noise, question.seed)  # without a sheet on the way: the page would show it in place of the finished pictures
    decode, pictures, rewards = convert.decoder(model, vae), [], []
    for rows in torch.arange(len(prompts)).split(limit):
        pictures.append(decode(states[rows]).float().cpu().clamp(0, 1))
        if reward is not None:
            rewards.append(checked_scores(reward, pictures[-1], [prompts[row].text for row in rows.tolist()]))
        progress.tick(len(rows))
    return torch.cat(pictures), torch.cat(rewards).double() if rewards else None


def look_of(origin: Origin, question: Question, series: str, reward: Reward | None, rewards: Tensor | None) -> dict[str, Any]:
    """What looks/v000012.json holds."""
    return {
        "version": origin.version,
        "digest": origin.digest,
        "at": time.time(),
        "series": series,
        "reward": reward and reward.spec,
        "rewards": None if rewards is None else rewards.tolist(),
        "reward_mean": None if rewards is None else rewards.mean().item(),
        "reward_std": None if rewards is None else rewards.std(correction=0).item(),
        "prompts": [prompt.text for prompt in question.prompts],
        "seed": question.seed,
    }


def told(look: dict[str, Any], first: dict[str, Any]) -> str:
    """A look in words, beside the first of its series."""
    line = f"version {look['version']}: "
    if look["reward_mean"] is None:
        return f"{line}{len(look['prompts'])} held-out pictures"
    line += f"held-out reward {look['reward_mean']:.3f}"
    return line if first["version"] == look["version"] or first["reward_mean"] is None else f"{line} (version {first['version']}: {first['reward_mean']:.3f})"


def contact_picture(pictures: Tensor) -> Image.Image:
    """All pictures as one."""
    # pictures: (N, H, W, 3) in [0, 1]; the result is at most LONGER_SIDE px wide or high
    columns, rows = table(len(pictures))
    images = [convert.image_of(picture) for picture in pictures]
    return paste([images[i::columns] for i in range(columns)], min(LONGER_SIDE // max(columns, rows), max(images[0].size)))


def filed(run: RunFolder, look: dict[str, Any], pictures: Tensor) -> str:
    """File the look. The graph goes on where the disk refuses it; the answer, else empty, says so."""
    data = io.BytesIO()
    contact_picture(pictures).save(data, "JPEG", quality=90)
    try:
        write_look(run, look, data.getvalue())
    except OSError as error:
        return f". Not kept, because {run.looks} cannot be written: {error.strerror or error}"
    return ""


def stored_pictures(run: RunFolder, look: dict[str, Any], count: int) -> Tensor | None:
    """The pictures of a filed look, cut out of its contact picture (N, h, w, 3); None where that cannot be read."""
    columns, rows = table(count)
    try:
        with Image.open(look_picture(run, look["version"])) as sheet:
            pixels = torch.from_numpy(np.array(sheet.convert("RGB"))).float() / 255
    except (OSError, ValueError):
        return None
    height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
    tiles = pixels[: height * rows, : width * columns].reshape(rows, height, columns, width, 3).transpose(1, 2)
    return tiles.reshape(rows * columns, height, width, 3)[:count]


def table(count: int) -> tuple[int, int]:
    """Columns and rows of a contact picture; its pictures go from left to right, then down."""
    columns = math.ceil(math.sqrt(count))
    return columns, math.ceil(count / columns)


def shown(node: Any, progress: Progress, pictures: Tensor, look: dict[str, Any], note: str) -> Shown:
    """Say the note and put the contact picture on the node; on a full disk the page shows none."""
    progress.announce(note)
    sheet = torch.from_numpy(np.array(contact_picture(pictures)))[None].float() / 255
    try:
        images = ui.PreviewImage(sheet, cls=node).as_dict()
    except OSError:
        images = {}
    return Shown(pictures, look["reward_mean"] or 0.0, {**images, "text": (note,)})
