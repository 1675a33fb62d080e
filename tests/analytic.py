"""A policy whose every answer is known: the exact velocity of Gaussian data, with a small LoRA on top.

Data of a prompt are Normal(mu, SPREAD^2 I), mu being the mean of its conditioning tensor. Fast enough for thousands of
network calls in a test, and complete enough for rollout, preview, update, iterate, LiveRun and the trainer's loop.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepwise_grpo.training import lora
from stepwise_grpo.training.capacity import Demand, Fit, Room, fit
from stepwise_grpo.training.config import Job, Origin, PreviewSettings, UpdateSettings
from stepwise_grpo.training.core.checks import rows_over_latent
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.experience import Experience, pack, unpack
from stepwise_grpo.training.iterate import Plan
from stepwise_grpo.training.preview import preview
from stepwise_grpo.training.rollout import rollout
from stepwise_grpo.training.trajectory import Credit, Prompt, Trajectory

SHAPE = (3, 2, 2)  # of one latent
SPREAD = 0.5
SIZE = 3 * 2 * 2
FEATURES = SIZE + 3  # state, time, mu, 1
LAYERS = ("blocks.0.attn.qkv", "blocks.0.attn.proj")
JOB = Job(base={"kind": "analytic"}, rank=2, alpha=4.0)
NEGATIVE = [[torch.zeros(1, 1, 1), {}]]
SCHEDULE = Schedule((1.0, 0.8, 0.6, 0.4, 0.2, 0.0), "ddim", 0.7)


def exact_velocity(x: Tensor, t: Tensor, mu: Tensor) -> Tensor:
    """E[x1 - x0 | x_t = x] for x0 ~ Normal(mu, SPREAD^2 I), x1 ~ Normal(0, I)."""
    t_, mu_ = rows_over_latent(t, x).to(x), rows_over_latent(mu, x).to(x)
    away = (x - (1 - t_) * mu_) / ((1 - t_) ** 2 * SPREAD**2 + t_**2)
    return t_ * away - (mu_ + (1 - t_) * SPREAD**2 * away)


class AnalyticPolicy:
    """``training.policy.Policy`` and what LiveRun needs of ``ComfyPolicy``. ``calls`` and ``rows`` count network use."""

    model_class = "Analytic"

    def __init__(self, job: Job = JOB) -> None:
        self.job, self.calls, self.rows, self.parked, self.memory = job, 0, 0, 0, 100_000
        shapes = {"A": (job.rank, FEATURES), "B": (SIZE, job.rank)}
        self._parameters = {f"{layer}.lora_{side}.weight": torch.zeros(shapes[side], requires_grad=True) for layer in LAYERS for side in "AB"}
        self._mu: Tensor | None = None
        self.has_experts, self.findings = False, None
        self._on = True
        self.set_weights(lora.first_weights(self._parameters, job))

    @contextmanager
    def prompts(self, prompts: list[list], negative: list, cfg: float, shape: Sequence[int], rows_per_call: int = 1 << 30, memory: int = 0) -> Iterator[None]:
        mean = lambda entries: torch.stack([cond.float().mean() for cond, _ in entries]).mean()
        self._mu, self._negative, self._cfg = torch.stack([mean(entries) for entries in prompts]), mean(negative), cfg
        try:
            yield
        finally:
            self._mu = None

    def velocity(self, x: Tensor, t: Tensor, rows: Tensor) -> Tensor:
        if self._mu is None:
            raise RuntimeError("velocity is only defined inside prompts(...)")
        self.calls, self.rows = self.calls + 1, self.rows + len(x)
        mu = self._mu[rows]
        v = exact_velocity(x, t, mu)
        if self._cfg != 1:
            unconditional = exact_velocity(x, t, self._negative.expand(len(x)))
            v = unconditional + self._cfg * (v - unconditional)
        return v + self._correction(x, t, mu) if self._on else v

    def _correction(self, x: Tensor, t: Tensor, mu: Tensor) -> Tensor:
        features = torch.cat([x.flatten(1), t[:, None].to(x), mu[:, None].to(x), torch.ones(len(x), 1).to(x)], 1)
        scale, w = self.job.alpha / self.job.rank, self._parameters
        added = sum(features @ w[f"{layer}.lora_A.weight"].T.to(x) @ w[f"{layer}.lora_B.weight"].T.to(x) for layer in LAYERS)
        return scale * added.reshape(x.shape)

    def parameters(self) -> list[Tensor]:
        return list(self._parameters.values())

    def weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def first_weights(self) -> dict[str, Tensor]:
        return lora.first_weights(self._parameters, self.job)

    @torch.no_grad()
    def set_weights(self, weights: dict[str, Tensor]) -> None:
        if weights.keys() != self._parameters.keys():
            raise ValueError("this LoRA was made for another model")
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])

    def exact(self) -> Any:
        return nullcontext()

    def checkpointed(self, on: bool | None) -> Any:
        return nullcontext()

    @contextmanager
    def base(self) -> Iterator[None]:
        self._on = False
        try:
            yield
        finally:
            self._on = True

    def set_checkpointing(self, setting: str) -> None:
        self.checkpointing = setting

    def rows_that_fit(self, experience: Experience) -> Fit:
        """A small memory of its own, 1000 bytes a row, so that the automatic choice and a refusal can be tried."""
        demand = Demand(weights=1000, lora=1000, fixed=0, row=1000, block=0)
        wanted = len(experience.schedule.stochastic) * experience.states.shape[1]
        return fit(demand, Room(total=self.memory, reserve=0), wanted, experience.settings.rows_per_call)

    def park(self) -> None:
        self.parked += 1

    def peak_bytes(self) -> int | None:
        return None

    @contextmanager
    def training(self) -> Iterator[None]:
        with torch.enable_grad():
            yield

    def matched_keys(self, tensors: dict[str, Tensor]) -> tuple[int, int]:
        named = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
        complete = [n for n in named if n.removeprefix(lora.PREFIX) in LAYERS and {f"{n}.lora_B.weight", f"{n}.alpha"} <= tensors.keys()]
        return len(complete), len(named)


class Brightness:
    """Mean of a picture, 0 .. 1."""

    spec = {"reward": "brightness"}

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return images.mean((1, 2, 3))


def decode(latents: Tensor) -> Tensor:
    """(N, 3, h, w) -> (N, h, w, 3) in [0, 1]; the latent 0 is mid grey."""
    return (latents.movedim(1, -1) * 0.1 + 0.5).clamp(0, 1)


def prompt(mu: float, index: int = 0, tokens: int = 1) -> Prompt:
    """A prompt whose data have the mean ``mu``."""
    return Prompt(f"mean {mu:g}", index, [[torch.full((1, tokens, 1), mu), {"pooled_output": torch.full((1, 2), mu)}]])


PROMPTS = [prompt(0.5, 0), prompt(-0.5, 1)]


def plan(scheme: str = "centred", group_size: int = 4, schedule: Schedule = SCHEDULE, substeps: int = 1, cfg: float = 1.0, **update: Any) -> Plan:
    settings = UpdateSettings(**{"learning_rate": 1e-2, "clip": 0.05, **update})
    return Plan(
        schedule=schedule, group_size=group_size, shape=SHAPE, cfg=cfg, preview=PreviewSettings(scheme=scheme, substeps=substeps), update=settings
    )


def trajectory_of(
    policy: AnalyticPolicy, plan: Plan, seed: int = 0, prompts: list[Prompt] = PROMPTS, origin: Origin | None = None, negative: list = NEGATIVE
) -> Trajectory:
    """A rollout of the policy as it is."""
    with torch.no_grad(), policy.prompts([p.conditioning for p in prompts], negative, plan.cfg, [1, *SHAPE]):
        path = rollout(policy.velocity, plan.schedule, [p.index for p in prompts], plan.group_size, SHAPE, seed)
    return Trajectory(
        path.states, path.velocities, plan.schedule, tuple(prompts), negative, plan.cfg, seed, origin or Origin(), policy.job.base, path.evaluations
    )


def credit_for(policy: AnalyticPolicy, trajectory: Trajectory, plan: Plan, reward: Any = None) -> tuple[Credit, Tensor]:
    """What the steps of a trajectory earned, and its final pictures."""
    with torch.no_grad(), policy.prompts([p.conditioning for p in trajectory.prompts], trajectory.negative, plan.cfg, [1, *SHAPE]):
        return preview(trajectory, policy.velocity, decode, reward or Brightness(), plan.preview)


def packed(policy: AnalyticPolicy, plan: Plan, seed: int = 0, origin: Origin | None = None, **more: Any) -> bytes:
    """One queued iteration of the policy as it is, as the graph would write it."""
    trajectory = trajectory_of(policy, plan, seed, origin=origin, **more)
    return pack(trajectory, credit_for(policy, trajectory, plan)[0], policy.job, plan.update)


def experience(policy: AnalyticPolicy, plan: Plan, folder: Path, seed: int = 0, **more: Any) -> Experience:
    """The same, as the trainer reads it."""
    path = folder / f"{seed}.safetensors"
    path.write_bytes(packed(policy, plan, seed, **more))
    return unpack(path)
