"""The laws of one stochastic step t -> t_next of a flow model. A law is a Gaussian; drawing and scoring come after it.

    x0_hat = x - t v              the clean estimate
    x1_hat = x + (1 - t) v        the noise estimate
    d      = t - t_next > 0

Every law with eta = 0 is the Euler step x - d v of the ODE. ``t_guard`` is the time used inside 1 - t where a law is
singular at t = 1; which step needs one is the schedule's decision (core/schedule.py), never a law's.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import need, need_rows, rows_over_latent


@dataclass(frozen=True)
class Transition:
    """The law Normal(mean, std^2 I) of the next state: ``mean`` (B, ...), ``std`` (B,) of the whole step."""

    mean: Tensor
    std: Tensor


def ode(x: Tensor, v: Tensor, t: Tensor, t_next: Tensor) -> Tensor:
    """The deterministic Euler step: shape of ``x``."""
    return x - rows_over_latent(t - t_next, x) * v


def _keeping_noise_level(x: Tensor, v: Tensor, t: Tensor, t_next: Tensor, std: Tensor) -> Transition:
    """The mean goes with the std (B,) so that the noise coefficient of the draw is exactly t_next."""
    # mean = (1 - t_next) x0_hat + sqrt(t_next^2 - std^2) x1_hat
    t_, t_next_, std_ = (rows_over_latent(value, x) for value in (t, t_next, std))
    x0_hat, x1_hat = x - t_ * v, x + (1 - t_) * v
    return Transition((1 - t_next_) * x0_hat + (t_next_**2 - std_**2).clamp_min(0).sqrt() * x1_hat, std)


def _drifting(x: Tensor, v: Tensor, t: Tensor, t_next: Tensor, diffusion: Tensor) -> Transition:
    """Euler-Maruyama with the diffusion coefficient (B,): fresh noise, and a drift against the noise estimate in return."""
    # mean = x - d v - s^2 d / (2 t) x1_hat,  std = s sqrt(d),  s the diffusion coefficient
    d = t - t_next
    x1_hat = x + rows_over_latent(1 - t, x) * v
    drift = rows_over_latent(diffusion**2 * d / (2 * t), x)
    return Transition(x - rows_over_latent(d, x) * v - drift * x1_hat, diffusion * d.sqrt())


def ddim(x: Tensor, v: Tensor, t: Tensor, t_next: Tensor, eta: float, t_guard: Tensor) -> Transition:
    """The law of Stepwise-Flow-GRPO: its std falls with the next time and with the noise level."""
    # arXiv:2603.28718: std = eta t_next sqrt(1 - t)
    return _keeping_noise_level(x, v, t, t_next, eta * t_next * (1 - t_guard).sqrt())


def cps(x: Tensor, v: Tensor, t: Tensor, t_next: Tensor, eta: float, t_guard: Tensor) -> Transition:
    """Coefficient-preserving sampling: the std is a fixed share of the next time."""
    # arXiv:2509.05952: std = t_next sin(eta pi / 2)
    return _keeping_noise_level(x, v, t, t_next, t_next * math.sin(eta * math.pi / 2))


def precise(x: Tensor, v: Tensor, t: Tensor, t_next: Tensor, eta: float, t_guard: Tensor) -> Transition:
    """The law of Precise: its std follows the change of the signal to noise ratio in the step."""
    # arXiv:2605.23522: std = t_next sqrt(1 - rho^(eta^2)), rho = t_next (1 - t) / (t (1 - t_next))
    rho = t_next * (1 - t) / (t * (1 - t_next))
    return _keeping_noise_level(x, v, t, t_next, t_next * (1 - rho.clamp(0, 1) ** (eta**2)).clamp_min(0).sqrt())


def flow(x: Tensor, v: Tensor, t: Tensor, t_next: Tensor, eta: float, t_guard: Tensor) -> Transition:
    """The stochastic equation of Flow-GRPO: the diffusion grows with the noise level."""
    # arXiv:2505.05470, eq. 9: s = eta sqrt(t / (1 - t))
    return _drifting(x, v, t, t_next, eta * (t / (1 - t_guard)).sqrt())


def dance(x: Tensor, v: Tensor, t: Tensor, t_next: Tensor, eta: float, t_guard: Tensor) -> Transition:
    """The stochastic equation of DanceGRPO: the diffusion is constant."""
    # arXiv:2505.07818: s = eta
    return _drifting(x, v, t, t_next, torch.full_like(t, eta))


@dataclass(frozen=True)
class Law:
    """A family of transitions: its function, default eta, allowed eta, and whether 1 - t makes it singular at t = 1."""

    step: Callable[[Tensor, Tensor, Tensor, Tensor, float, Tensor], Transition]
    default_eta: float
    max_eta: float
    singular_at_one: bool
    keeps_noise_level: bool


LAWS = {
    "ddim": Law(ddim, 0.7, 1.0, singular_at_one=True, keeps_noise_level=True),
    "cps": Law(cps, 0.8, 1.0, singular_at_one=False, keeps_noise_level=True),
    "precise": Law(precise, 1.5, 4.0, singular_at_one=False, keeps_noise_level=True),
    "flow": Law(flow, 0.7, 2.0, singular_at_one=True, keeps_noise_level=False),
    "dance": Law(dance, 0.3, 1.0, singular_at_one=False, keeps_noise_level=False),
}


def resolve_eta(law: str, eta: float) -> float:
    """The eta to use: -1 means the law's default; anything outside the law's range is refused."""
    need(law in LAWS, f"law must be one of {', '.join(LAWS)}; got {law!r}")
    if eta == -1:
        return LAWS[law].default_eta
    limit = LAWS[law].max_eta
    need(0 <= eta <= limit, f"eta of the law {law!r} must lie between 0 and {limit:g} (or be -1 for its default); got {eta:g}")
    return float(eta)


def draw(law: Transition, noise: Tensor) -> Tensor:
    """The next state for a given standard normal: no generator in here."""
    return law.mean + rows_over_latent(law.std, law.mean) * noise


def mean_log_density(law: Transition, x_next: Tensor) -> Tensor:
    """Gaussian log density of ``x_next``, the mean over latent elements, of shape (B,). A point has none, which is an error."""
    need_rows(x_next, std=law.std)
    need(bool((law.std > 0).all()), "a deterministic step has no density: keep it out of the ratio")
    z = (x_next - law.mean) / rows_over_latent(law.std, x_next)
    return -0.5 * z.square().flatten(1).mean(1) - law.std.log() - 0.5 * math.log(2 * math.pi)


def mean_kl(law: Transition, reference: Transition) -> Tensor:
    """KL(law || reference) of two laws of equal std, averaged over latent elements: shape (B,)."""
    need(bool((law.std > 0).all()), "a deterministic step has no KL: keep it out of the loss")
    return (law.mean - reference.mean).square().flatten(1).mean(1) / (2 * law.std.square())


def mean_slope(law: str, t: Tensor, t_next: Tensor, std: Tensor) -> Tensor:
    """How strongly the velocity moves the mean of one step, with the shape of ``t``."""
    # |d mean / d v|, J in NOTATION.md
    if LAWS[law].keeps_noise_level:
        return (t * (1 - t_next) - (1 - t) * (t_next**2 - std**2).clamp_min(0).sqrt()).abs()
    return ((t - t_next) + std**2 * (1 - t) / (2 * t)).abs()
