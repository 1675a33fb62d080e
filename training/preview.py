"""Trajectory -> rewards -> credit: the clean estimate of every state, decoded and scored."""

import time
from collections.abc import Callable
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import PreviewSettings
from .core.advantages import NEED_NO_PREVIEWS, advantages
from .core.gains import gains
from .core.tweedie import Velocity, clean_picture, substep_counts
from .picture import small_picture
from .policy import Decoder, Reward
from .trajectory import Credit, Trajectory

THUMBNAIL = 96  # longer side in pixels
# on_batch(states, rows, thumbnails): which states (N,) of which rows (N,) were scored, and their pictures (N, h, w, 3) in [0, 1]
OnBatch = Callable[[Tensor, Tensor, Tensor], None]


def preview(trajectory: Trajectory, velocity: Velocity, decode: Decoder, reward: Reward, settings: PreviewSettings, on_batch: OnBatch | None = None) -> tuple[Credit, Tensor]:
    """Credit of a trajectory and its final pictures (B, H, W, 3). ``velocity``'s rows are prompt indices."""
    seconds = {"preview": 0.0, "decode": 0.0, "reward": 0.0}
    looks = _states_to_score(trajectory, settings.scheme)
    rewards = torch.full(trajectory.states.shape[:2], torch.nan)
    thumbnails, finals, evaluations = None, [], 0
    for start in range(0, len(looks), settings.rows_per_call):
        ks, rows = looks[start : start + settings.rows_per_call].unbind(1)
        with _timed(seconds, "preview"):
            clean, calls = _clean_states(trajectory, velocity, ks, rows, settings)
        with _timed(seconds, "decode"):
            images = decode(clean).float().cpu().clamp(0, 1)
        with _timed(seconds, "reward"):
            rewards[ks, rows] = checked_scores(reward, images, [trajectory.texts[row] for row in rows.tolist()])
        small = _thumbnails(images)
        if thumbnails is None:
            thumbnails = small.new_zeros(*trajectory.states.shape[:2], *small.shape[1:])
        thumbnails[ks, rows] = small
        finals.append(images[ks == trajectory.schedule.steps])
        evaluations += calls
        if on_batch is not None:
            on_batch(ks, rows, small)
    _share_the_start(trajectory, rewards, thumbnails)
    pictures = torch.cat(finals)
    best = small_picture(pictures[rewards[-1].argmax()])
    return credit_of(trajectory, rewards, settings.scheme, reward.spec, thumbnails, evaluations, seconds, best), pictures


def work(trajectory: Trajectory, settings: PreviewSettings) -> tuple[int, int]:
    """How many pictures ``preview`` decodes and scores, and how many go through the network before."""
    looks = _states_to_score(trajectory, settings.scheme)
    noisy = looks[looks[:, 0] < trajectory.schedule.steps, 0]
    return len(looks), int((_substeps(trajectory, noisy, settings) - 1).sum())


def credit_of(
    trajectory: Trajectory, rewards: Tensor, scheme: str, spec: dict, thumbnails: Tensor | None, evaluations: int, seconds: dict[str, float], picture: Tensor | None = None
) -> Credit:
    """Credit from rewards (K + 1, B); rows of NaN are states nobody looked at."""
    schedule, group_size = trajectory.schedule, trajectory.group_size
    g = gains(rewards)
    result = advantages(scheme, g, rewards[-1], schedule.stochastic, schedule.weights(), group_size)
    texts = tuple(prompt.text for prompt in trajectory.prompts)
    return Credit(rewards, g, result.values, schedule, group_size, texts, scheme, spec, result.zero_variance_groups, thumbnails, evaluations, seconds, trajectory.seed, picture)


def checked_scores(reward: Reward, images: Tensor, prompts: list[str]) -> Tensor:
    """Scores (N,), or a ``ValueError`` naming the reward when they are not N finite numbers."""
    scores = reward.score(images, prompts).detach().float().cpu()
    name = reward.spec.get("reward", "?")
    if scores.shape != (len(images),):
        raise ValueError(f"reward {name!r} gave scores of shape {tuple(scores.shape)} for {len(images)} pictures")
    bad = (~scores.isfinite()).sum().item()
    if bad:
        raise ValueError(f"reward {name!r} gave NaN or infinity for {bad} of {len(images)} pictures; nothing was trained")
    return scores


def _states_to_score(trajectory: Trajectory, scheme: str) -> Tensor:
    """(N, 2) pairs (k, row). The shared start is looked at once a prompt; uniform schemes look at the final pictures only."""
    steps, total, size = trajectory.schedule.steps, trajectory.states.shape[1], trajectory.group_size
    pairs = [(steps, row) for row in range(total)]
    if scheme not in NEED_NO_PREVIEWS:
        pairs = [(0, row) for row in range(0, total, size)] + [(k, row) for k in range(1, steps) for row in range(total)] + pairs
    return torch.tensor(pairs)


def _clean_states(trajectory: Trajectory, velocity: Velocity, ks: Tensor, rows: Tensor, settings: PreviewSettings) -> tuple[Tensor, int]:
    """Clean estimates (N, ...) of states (ks, rows), and how many rows went through the network."""
    clean, noisy = trajectory.states[ks, rows], (ks < trajectory.schedule.steps).nonzero().flatten()
    if not len(noisy):
        return clean, 0
    ks, rows = ks[noisy], rows[noisy]
    t, counts = torch.tensor(trajectory.schedule.times)[ks], _substeps(trajectory, ks, settings)
    prompt = rows // trajectory.group_size
    in_group = lambda x, t, chosen: velocity(x, t, prompt[chosen]).float().cpu()
    clean = clean.clone()
    clean[noisy] = clean_picture(in_group, clean[noisy], trajectory.velocities[ks, rows], t, counts, settings.spacing)
    return clean, int((counts - 1).sum())


def _substeps(trajectory: Trajectory, ks: Tensor, settings: PreviewSettings) -> Tensor:
    return substep_counts(torch.tensor(trajectory.schedule.times)[ks], settings.substeps, settings.by_time)


def _share_the_start(trajectory: Trajectory, rewards: Tensor, thumbnails: Tensor | None) -> None:
    first = torch.arange(rewards.shape[1]) // trajectory.group_size * trajectory.group_size
    rewards[0] = rewards[0, first]
    if thumbnails is not None:
        thumbnails[0] = thumbnails[0, first]


def _thumbnails(images: Tensor) -> Tensor:
    """The pictures made smaller: the longer side has at most THUMBNAIL pixels."""
    scale = min(1.0, THUMBNAIL / max(images.shape[1:3]))
    size = [max(1, round(side * scale)) for side in images.shape[1:3]]
    return F.interpolate(images.movedim(-1, 1), size=size, mode="area").movedim(1, -1)


@contextmanager
def _timed(seconds: dict[str, float], what: str):
    start = time.perf_counter()
    yield
    seconds[what] += time.perf_counter() - start
