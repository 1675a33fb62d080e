"""The time grid of a rollout and which of its steps are stochastic: decided by index, as data, in one place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import need
from .transitions import LAWS, Transition, mean_slope, ode, resolve_eta


@dataclass(frozen=True)
class Schedule:
    """K steps, each from one of the ``times`` to the next: the first time is 1 (noise), the last one is 0 (image).

    The last step is always the ODE step. The first step of a law that is singular at t = 1 uses the next grid time
    inside 1 - t (``floor_first``); with the literal formula it has no finite positive std and is an ODE step too.
    Equality of floats decides nothing: a shifted grid may start at 0.99999.
    """

    times: tuple[float, ...]
    law: str = "ddim"
    eta: float = 0.7
    floor_first: bool = True

    def __post_init__(self) -> None:
        times = self.times
        need(len(times) >= 3, f"a rollout needs at least 2 steps; the sigmas give {max(len(times) - 1, 0)}")
        need(all(math.isfinite(t) for t in times), "the sigmas contain NaN or infinity")
        need(abs(times[0] - 1) <= 1e-3, f"the sigmas must start at 1, pure noise (denoise = 1); they start at {times[0]:g}")
        need(times[-1] == 0, f"the sigmas must end at 0, the picture; they end at {times[-1]:g}")
        need(all(a > b for a, b in zip(times, times[1:])), "the sigmas must fall from step to step")
        need(times[1] < 1, "the second sigma must be below 1")
        object.__setattr__(self, "eta", resolve_eta(self.law, self.eta))

    @classmethod
    def of(cls, sigmas: Sequence[float], law: str, eta: float, floor_first: bool = True) -> "Schedule":
        """A schedule from ComfyUI's sigmas, whose name for a flow model's t is sigma."""
        return cls(tuple(float(s) for s in sigmas), law, eta, floor_first)

    @property
    def steps(self) -> int:
        return len(self.times) - 1

    @property
    def stochastic(self) -> tuple[int, ...]:
        """Indices of the steps that have a density."""
        if self.eta == 0:
            return ()
        first = 1 if LAWS[self.law].singular_at_one and not self.floor_first else 0
        return tuple(range(first, self.steps - 1))

    def guard(self, step: int) -> float:
        """The time used inside 1 - t in ``step``: its own, but for a floored first step."""
        return self.times[1] if step == 0 and LAWS[self.law].singular_at_one and self.floor_first else self.times[step]

    def transition(self, x: Tensor, v: Tensor, steps: Tensor) -> Transition:
        """The laws of stochastic ``steps`` (B,) from states ``x`` with velocities ``v`` (B, ...)."""
        need(set(steps.tolist()) <= set(self.stochastic), "a deterministic step has no law with a density")
        t, t_next, t_guard = self._rows(x, steps)
        return LAWS[self.law].step(x, v, t, t_next, self.eta, t_guard)

    def ode_step(self, x: Tensor, v: Tensor, step: int) -> Tensor:
        """The deterministic step ``step`` of all rows."""
        t, t_next, _ = self._rows(x, torch.full((len(x),), step))
        return ode(x, v, t, t_next)

    def weights(self) -> Tensor:
        """std_k / |d mean_k / d v| of every step, (K,), zero where the step is deterministic: weights of credit by noise level."""
        weights = torch.zeros(self.steps)
        for k in self.stochastic:
            one = torch.zeros(1, 1)
            std = self.transition(one, one, torch.tensor([k])).std
            t, t_next = torch.tensor([self.times[k]]), torch.tensor([self.times[k + 1]])
            weights[k] = (std / mean_slope(self.law, t, t_next, std)).item()
        return weights

    def _rows(self, x: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        grid = torch.tensor(self.times, dtype=x.dtype, device=x.device)
        guards = torch.tensor([self.guard(k) for k in range(self.steps)], dtype=x.dtype, device=x.device)
        steps = steps.to(x.device)
        return grid[steps], grid[steps + 1], guards[steps]
