"""From gains to advantages: how a group's rewards become credit for each member and step.

Within one group of G members: gains g_ik, S the stochastic steps; std is the population's; eps = 1e-4. All schemes give
zeros outside S, are clipped to +-5, and give exact zeros to a group whose members do not differ.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import need

EPS = 1e-4
CLIP = 5.0


@dataclass(frozen=True)
class Group:
    """One group's scores. ``gains`` (K, G) and ``final`` (G,); ``stochastic`` (S,) step indices; ``weights`` (K,)."""

    gains: Tensor
    final: Tensor
    stochastic: Tensor
    weights: Tensor


def _normalised(values: Tensor) -> Tensor:
    return (values - values.mean()) / (values.std(correction=0) + EPS)


def _centred(values: Tensor) -> Tensor:
    """Centre over members at each step, then one scale for all."""
    centred = values - values.mean(1, keepdim=True)
    return centred / (centred.square().mean().sqrt() + EPS)


def paper(group: Group) -> Tensor:
    """Stepwise-Flow-GRPO: one mean and one std over members and stochastic steps."""
    return _normalised(group.gains[group.stochastic])


def paper_all_steps(group: Group) -> Tensor:
    """As printed: mean and std over members and ALL steps."""
    return _normalised(group.gains)[group.stochastic]


def centred(group: Group) -> Tensor:
    """The step's mean over members is taken off first, so an offset all members share earns nothing."""
    return _centred(group.gains[group.stochastic])


def per_step(group: Group) -> Tensor:
    """Each step has its own mean and std over members: late steps get as loud as early ones."""
    values = group.gains[group.stochastic]
    return (values - values.mean(1, keepdim=True)) / (values.std(1, correction=0, keepdim=True) + EPS)


def to_go(group: Group) -> Tensor:
    """The sum of this and all later gains (deterministic steps included), then as ``centred``."""
    remaining = group.gains.flip(0).cumsum(0).flip(0)
    return _centred(remaining[group.stochastic])


def uniform(group: Group) -> Tensor:
    """Flow-GRPO: the final reward alone, the same for every step."""
    return _normalised(group.final).expand(len(group.stochastic), -1)


def uniform_weighted(group: Group) -> Tensor:
    """``uniform`` weighted by each step's noise level (core/schedule.py: weights)."""
    weights = group.weights[group.stochastic]
    return uniform(group) * (weights / weights.mean())[:, None]


SCHEMES: dict[str, Callable[[Group], Tensor]] = {
    "centred": centred,
    "paper": paper,
    "paper_all_steps": paper_all_steps,
    "per_step": per_step,
    "to_go": to_go,
    "uniform": uniform,
    "uniform_weighted": uniform_weighted,
}
NEED_NO_PREVIEWS = ("uniform", "uniform_weighted")


@dataclass(frozen=True)
class Advantages:
    """``values`` (K, B), zero outside the stochastic steps; ``zero_variance_groups`` whose members did not differ."""

    values: Tensor
    zero_variance_groups: int


def members_differ(group: Group, previews: bool) -> bool:
    """Whether final rewards or, where previews were scored, any step's gains spread by at least 1e-4 within the group."""
    spread = group.final.std(correction=0)
    if previews:
        spread = torch.maximum(spread, group.gains.std(1, correction=0).max())
    return bool(spread >= EPS)


def advantages(scheme: str, gains: Tensor, final: Tensor, stochastic: tuple[int, ...], weights: Tensor, group_size: int) -> Advantages:
    """The advantages of all groups, from ``gains`` (K, B), ``final`` (B,) and ``weights`` (K,) in prompt-major order."""
    # B = P * group_size
    need(scheme in SCHEMES, f"credit must be one of {', '.join(SCHEMES)}; got {scheme!r}")
    need(group_size >= 2, f"a group needs at least 2 members to compare; got {group_size}")
    need(final.shape[0] % group_size == 0 and gains.shape[1:] == final.shape, f"gains {tuple(gains.shape)} and final {tuple(final.shape)} do not form groups of {group_size}")
    need(len(stochastic) > 0, "no step is stochastic, so there is nothing to give credit to: raise eta above 0")
    seen = final if scheme in NEED_NO_PREVIEWS else torch.cat([final[None], gains])
    need(bool(seen.isfinite().all()), "the rewards contain NaN or infinity, so members cannot be compared")
    values = torch.zeros(gains.shape, dtype=torch.float32)
    steps, zero = torch.tensor(stochastic), 0
    for start in range(0, len(final), group_size):
        members = slice(start, start + group_size)
        group = Group(gains[:, members].double(), final[members].double(), steps, weights.double())
        if members_differ(group, previews=scheme not in NEED_NO_PREVIEWS):
            values[steps, members] = SCHEMES[scheme](group).clamp(-CLIP, CLIP).float()
        else:
            zero += 1
    return Advantages(values, zero)
