"""One whole iteration in one process: rollout, preview, update. The graph does the same with its nodes in between."""

import time
from dataclasses import dataclass
from typing import Any

import torch

from .config import Origin, PreviewSettings, UpdateSettings
from .core.schedule import Schedule
from .experience import Experience
from .peers import ALONE, Peers
from .policy import Decoder, Reward
from .preview import preview
from .rollout import rollout
from .trajectory import Credit, Prompt, Trajectory
from .update import update


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What stays the same over the iterations of a run."""

    schedule: Schedule
    group_size: int
    shape: tuple[int, ...]
    """Of one latent."""
    cfg: float
    preview: PreviewSettings
    update: UpdateSettings


def iterate(
    policy: Any, optimiser: torch.optim.Optimizer, plan: Plan, prompts: list[Prompt], negative: list, decode: Decoder, reward: Reward, seed: int, peers: Peers = ALONE
) -> tuple[Credit, dict[str, Any]]:
    """One iteration's credit and metrics; the policy has moved by ``plan.update.updates`` optimiser steps.

    Among ``peers`` each process is given prompts of its own: the credit is theirs, the metrics and the step are those of all.
    """
    conditioning = [prompt.conditioning for prompt in prompts]
    start, rows = time.perf_counter(), plan.update.rows_per_call or plan.preview.rows_per_call
    with policy.prompts(conditioning, negative, plan.cfg, [rows, *plan.shape], rows):
        with torch.no_grad():
            path = rollout(policy.velocity, plan.schedule, [prompt.index for prompt in prompts], plan.group_size, plan.shape, seed)
            trajectory = Trajectory(path.states, path.velocities, plan.schedule, tuple(prompts), negative, plan.cfg, seed, Origin(), policy.job.base, path.evaluations)
            rolled = time.perf_counter()
            credit, _ = preview(trajectory, policy.velocity, decode, reward, plan.preview)
        metrics = update(policy, optimiser, _experience(trajectory, credit, policy.job, plan), seed, peers=peers)
    evaluations = int(*peers.sum([path.evaluations + credit.evaluations])) + metrics["update_evaluations"]
    return credit, {**metrics, "evaluations": evaluations, "seconds_total": time.perf_counter() - start, "seconds_rollout": rolled - start}


def _experience(t: Trajectory, credit: Credit, job: Any, plan: Plan) -> Experience:
    conditioning = [prompt.conditioning for prompt in t.prompts]
    texts = [prompt.text for prompt in t.prompts]
    return Experience(t.states, t.velocities, credit.rewards, credit.advantages, t.schedule, conditioning, t.negative, texts, t.cfg, t.origin, job, plan.update, about={})
