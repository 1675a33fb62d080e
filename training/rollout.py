"""A group -> trajectory: K stochastic steps for every member, from one noise a prompt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .core.noise import initial_noise, step_noise
from .core.schedule import Schedule
from .core.transitions import draw
from .core.tweedie import Velocity, clean_estimate

# on_step(k, states, velocities): called after step k with the states before it and their velocities, both (B, ...)
OnStep = Callable[[int, Tensor, Tensor], None]


@dataclass(frozen=True)
class Path:
    """``states`` (K + 1, B, ...), ``velocities`` (K, B, ...), both fp32 on the CPU; rows through the network."""

    states: Tensor
    velocities: Tensor
    evaluations: int


def rollout(
    velocity: Velocity, schedule: Schedule, prompt_ids: Sequence[int], group_size: int, shape: Sequence[int], seed: int, on_step: OnStep | None = None
) -> Path:
    """Walk all groups from noise to picture.

    ``prompt_ids`` (P) name the prompts' noise streams; ``shape`` is one latent's. ``velocity``'s rows are prompt indices 0..P-1.
    The members of a group share their first state, so its velocity is computed once a prompt.
    """
    prompts, members = len(prompt_ids), group_size
    rows = torch.arange(prompts).repeat_interleave(members)
    noise = torch.stack([initial_noise(seed, id, shape) for id in prompt_ids])
    first = velocity(noise, torch.full((prompts,), schedule.times[0]), torch.arange(prompts)).float().cpu()
    x, v = noise[rows], first[rows]
    states, velocities, evaluations = [x], [v], prompts
    for k in range(schedule.steps):
        if k > 0:
            v = velocity(x, torch.full((len(x),), schedule.times[k]), rows).float().cpu()
            velocities.append(v)
            evaluations += len(x)
        if on_step is not None:
            on_step(k, x, v)
        x = _step(schedule, k, x, v, seed, prompt_ids, members)
        states.append(x)
    return Path(torch.stack(states), torch.stack(velocities), evaluations)


def walk(velocity: Velocity, schedule: Schedule, x: Tensor, seed: int, on_step: OnStep | None = None) -> Tensor:
    """The last states of rows ``x`` (B, ...) that start as given; row i draws its noise as member i of prompt 0.

    ``on_step(k, states, clean estimates)``.
    """
    for k in range(schedule.steps):
        t = torch.full((len(x),), schedule.times[k])
        v = velocity(x, t, torch.arange(len(x)))
        if on_step is not None:
            on_step(k, x, clean_estimate(x, v, t))
        x = _step(schedule, k, x, v, seed, [0], len(x))
    return x


def _step(schedule: Schedule, k: int, x: Tensor, v: Tensor, seed: int, prompt_ids: Sequence[int], members: int) -> Tensor:
    if k not in schedule.stochastic:
        return schedule.ode_step(x, v, k)
    noise = torch.stack([step_noise(seed, id, member, k, x.shape[1:]) for id in prompt_ids for member in range(members)])
    return draw(schedule.transition(x, v, torch.full((len(x),), k)), noise)
