"""One experience -> ``updates`` optimiser steps, checked before the first one."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .capacity import Fit
from .config import UpdateSettings
from .core.loss import Surrogate, clipped_surrogate
from .core.transitions import mean_kl, mean_log_density
from .experience import Experience
from .optimiser import tune
from .peers import ALONE, Peers
from .policy import Policy


class RefusedExperience(ValueError):
    """An experience that must not be trained on; the message says why."""


@dataclass
class Rows:
    """Scored (step, member) pairs that go through the network in one call. All fields have N entries."""

    steps: Tensor
    members: Tensor
    x: Tensor
    x_next: Tensor
    recorded: Tensor
    advantages: Tensor
    prompts: Tensor
    old_density: Tensor = field(default_factory=lambda: torch.empty(0))
    reference: Tensor | None = None


def update(
    policy: Policy, optimiser: torch.optim.Optimizer, experience: Experience, seed: int, behaviour: dict[str, Tensor] | None = None, peers: Peers = ALONE
) -> dict[str, Any]:
    """Train on one experience; returns its metrics (NOTATION.md defines each).

    ``behaviour`` are the weights that made it when they are not the current ones. After a ``RefusedExperience`` the
    caller goes back to the last committed weights. ``seed`` decides which members belong to which optimiser step.
    Among ``peers`` every process has an experience of its own groups; step and metrics are those of all groups together.
    """
    if not experience.settings.rows_per_call:
        experience, _ = choose_rows(policy, experience)
    settings, start = experience.settings, time.perf_counter()
    policy.set_checkpointing(settings.checkpointing)
    tune(optimiser, settings)
    parts = _split_members(experience, settings, seed, peers)
    metrics = _score_behaviour(policy, experience, [rows for part in parts for rows in part], behaviour, peers)
    credited = any(peers.largest([float(experience.advantages.any())]))
    _refuse_foreign_velocity(metrics)
    steps = []
    for index, part in enumerate(parts):
        optimiser.zero_grad(set_to_none=True)
        step = _backward(policy, experience, part, peers)
        if index == 0 and behaviour is None:
            metrics["ratio_error_max"] = step["ratio_error"]
            _refuse_wrong_ratio(step["ratio_error"], settings.clip)
        if credited or settings.beta > 0:
            step["grad_norm"] = torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm).item()
            _refuse_bad_gradient(step["grad_norm"])
            optimiser.step()
        steps.append(step)
    optimiser.zero_grad(set_to_none=True)
    rows = int(*peers.sum([sum(len(rows.steps) for part in parts for rows in part)]))
    passes = 4 + (settings.beta > 0)  # old density, forward and backward (counted as two), and the base model's velocity
    return {**metrics, **_summary(steps), "update_evaluations": passes * rows, "seconds": time.perf_counter() - start}


def choose_rows(policy: Policy, experience: Experience) -> tuple[Experience, Fit]:
    """The experience with a number of rows a call: its own, or as many as the policy has room for. ``RefusedExperience`` where not one fits."""
    fit = policy.rows_that_fit(experience)
    if not fit.rows:
        raise RefusedExperience(fit.message)
    return replace(experience, settings=replace(experience.settings, rows_per_call=fit.rows)), fit


def _split_members(experience: Experience, settings: UpdateSettings, seed: int, peers: Peers) -> list[list[Rows]]:
    """For each optimiser step, its calls' rows. Every group is split evenly, so each step sees all prompts."""
    size, total = experience.group_size, experience.states.shape[1]
    generator = torch.Generator("cpu").manual_seed(seed)
    for _ in range(peers.before(total // size)):
        torch.randperm(size, generator=generator)  # the groups of other processes, so that each group is split as it would be in one
    order = [torch.randperm(size, generator=generator) + first for first in range(0, total, size)]
    updates = min(settings.updates, size)
    return [_calls(experience, torch.cat([o[i::updates] for o in order]).sort().values, settings.rows_per_call) for i in range(updates)]


def _calls(experience: Experience, members: Tensor, rows_per_call: int) -> list[Rows]:
    steps = torch.tensor(experience.schedule.stochastic)
    pairs = torch.cartesian_prod(steps, members)
    return [_rows(experience, chunk[:, 0], chunk[:, 1]) for chunk in pairs.split(rows_per_call)]


def _rows(e: Experience, k: Tensor, member: Tensor) -> Rows:
    return Rows(k, member, e.states[k, member], e.states[k + 1, member], e.velocities[k, member], e.advantages[k, member], member // e.group_size)


def _velocity(policy: Policy, experience: Experience, rows: Rows) -> Tensor:
    times = torch.tensor(experience.schedule.times)[rows.steps]
    return policy.velocity(rows.x, times, rows.prompts).float().to(rows.x.device)


@torch.no_grad()
def _score_behaviour(policy: Policy, experience: Experience, calls: list[Rows], behaviour: dict[str, Tensor] | None, peers: Peers) -> dict[str, Any]:
    """Old densities, computed by the trainer itself so that the ratio starts at 1 whatever the graph did."""
    current = policy.weights() if behaviour is not None else None
    if behaviour is not None:
        policy.set_weights(behaviour)
    errors, implied = [], []
    for rows in calls:
        v = _velocity(policy, experience, rows)
        rows.old_density = mean_log_density(experience.schedule.transition(rows.x, v, rows.steps), rows.x_next)
        recorded = mean_log_density(experience.schedule.transition(rows.x, rows.recorded, rows.steps), rows.x_next)
        implied.append((recorded - rows.old_density).abs())
        errors.append((v - rows.recorded).flatten(1).norm(dim=1) / rows.recorded.flatten(1).norm(dim=1).clamp_min(1e-12))
    if current is not None:
        policy.set_weights(current)
    if experience.settings.beta > 0:
        with policy.base():
            for rows in calls:
                rows.reference = _velocity(policy, experience, rows)
    error = torch.cat(errors)
    largest, density = peers.largest([error.max().item(), torch.cat(implied).max().item()])
    total, count = peers.sum([error.sum().item(), len(error)])
    return {"graph_velocity_error": largest, "graph_velocity_error_mean": total / count, "graph_density_error": density}


def _backward(policy: Policy, experience: Experience, part: list[Rows], peers: Peers) -> dict[str, float]:
    """Gradients of one optimiser step: the mean over its members and stochastic steps, those of all processes."""
    settings, (total,) = experience.settings, peers.sum([sum(len(rows.steps) for rows in part)])
    losses, ratios, clipped, kls = [], [], [], []
    for rows in part:
        with policy.training():
            surrogate, kl = _surrogate(policy, experience, rows, settings)
            (surrogate.loss.sum() / total).backward()
        losses.append(surrogate.loss.detach())
        ratios.append((surrogate.ratio - 1).abs())
        clipped.append(surrogate.clipped.float())
        kls.append(kl)
    peers.add_gradients(policy.parameters())
    loss, share, kl = (value / total for value in peers.sum([torch.cat(values).sum().item() for values in (losses, clipped, kls)]))
    (ratio_error,) = peers.largest([torch.cat(ratios).max().item()])
    return {"loss": loss, "ratio_error": ratio_error, "clip_fraction": share, "kl": kl, "grad_norm": 0.0}


def _surrogate(policy: Policy, experience: Experience, rows: Rows, settings: UpdateSettings) -> tuple[Surrogate, Tensor]:
    law = experience.schedule.transition(rows.x, _velocity(policy, experience, rows), rows.steps)
    kl = None
    if rows.reference is not None:
        kl = mean_kl(law, experience.schedule.transition(rows.x, rows.reference, rows.steps))
    density = mean_log_density(law, rows.x_next)
    surrogate = clipped_surrogate(density, rows.old_density, rows.advantages, kl, settings.clip, settings.beta)
    return surrogate, torch.zeros(len(density)) if kl is None else kl.detach()


def _summary(steps: list[dict[str, float]]) -> dict[str, float]:
    mean = {key: sum(step[key] for step in steps) / len(steps) for key in ("loss", "clip_fraction", "kl", "grad_norm")}
    return {**mean, "ratio_max": max(step["ratio_error"] for step in steps)}


def _refuse_foreign_velocity(metrics: dict[str, Any]) -> None:
    if not metrics["graph_velocity_error"] <= 0.2:  # so that NaN is refused as well
        raise RefusedExperience(
            f"the trainer's velocity differs from the recorded one by {metrics['graph_velocity_error']:.0%}: "
            "the graph used another model, prompt, cfg or patch than this run trains. If a file was replaced while ComfyUI ran, restart ComfyUI"
        )


def _refuse_wrong_ratio(error: float, clip: float) -> None:
    if not error <= clip / 100:
        raise RefusedExperience(f"the ratio starts at 1 +- {error:.2e}, above clip / 100 = {clip / 100:.2e}: this model computes differently with gradients")


def _refuse_bad_gradient(norm: float) -> None:
    if norm != norm or norm == float("inf"):
        raise RefusedExperience("the gradient is NaN or infinite; nothing was changed")
