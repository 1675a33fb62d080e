"""A bench for one architecture: its checkpoints, prompts and states, and what ComfyUI and the trainer load from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepwise_grpo.tests.architectures import ARCHITECTURES, Architecture, detection_of, prompt, write
from stepwise_grpo.training import lora
from stepwise_grpo.training.base import describe
from stepwise_grpo.training.config import Job, Origin, UpdateSettings
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.experience import Experience
from stepwise_grpo.training.rollout import rollout

SCHEDULE = Schedule((1.0, 0.8, 0.5, 0.0), "ddim", 0.7)
TIMES, ROWS = torch.tensor([0.9, 0.5, 0.2]), torch.tensor([0, 1, 2])


class Bench:
    """``backend`` is training.backends.comfy, whose diffusion models lie in ``folder``."""

    def __init__(self, name: str, backend: Any, folder: Path) -> None:
        self.name, self.backend, self.folder = name, backend, folder
        self.architecture: Architecture = ARCHITECTURES[name]
        # Two of one length, which share a network call, and a shorter one, which has its own.
        self.prompts = [prompt(self.architecture, seed, tokens) for seed, tokens in ((1, 6), (2, 5), (3, 6))]
        self.negative = prompt(self.architecture, 4)
        self.x = torch.randn(3, *self.architecture.latent, generator=torch.Generator().manual_seed(5))
        self.weighing = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64) / self.x.numel() ** 0.5

    def file(self, dtype: torch.dtype = torch.float32, scaled: str = "") -> Path:
        path = self.folder / f"{self.name}_{str(dtype).removeprefix('torch.')}_{scaled}.safetensors"
        return path if path.exists() else write(self.architecture, path, dtype, scaled)

    def job(self, targets: str = "attention", seed: int = 0) -> Job:
        path = self.file()
        return Job(base=describe("diffusion_models", path.name, path), targets=targets, rank=4, alpha=8.0, seed=seed)

    def patcher(self, dtype: torch.dtype = torch.float32, scaled: str = "") -> Any:
        """As the stock loader gives it. On a CPU it would turn bf16 and plain fp8 into fp32 and must be told not to."""
        import comfy.sd

        options = {} if scaled or dtype == torch.float32 else {"dtype": dtype}
        with detection_of(self.architecture), torch.no_grad():
            patcher = comfy.sd.load_diffusion_model(str(self.file(dtype, scaled)), options)
        if dtype == torch.bfloat16:
            patcher.set_model_compute_dtype(dtype)
        return patcher

    def policy(self, checkpoint: bool = False, targets: str = "attention", seed: int = 0) -> Any:
        """A policy as the trainer opens it, with a LoRA that has already learnt something."""
        with detection_of(self.architecture):
            return learnt(self.backend.open_policy(self.job(targets, seed), checkpoint), seed)

    def stock(self, patcher: Any, policy: Any, scale: float = 1.0) -> Any:
        """``patcher`` with the policy's version file by ComfyUI's own loader. ``scale`` spoils the LoRA."""
        import comfy.sd
        import comfy.utils

        weights = {name: weight * (scale if "lora_B" in name else 1) for name, weight in policy.weights().items()}
        path = self.folder / f"version_{len(list(self.folder.iterdir()))}.safetensors"  # never the same: the loader maps the file into memory
        path.write_bytes(lora.save(weights, policy.job, {"run": "test", "version": 1}))
        return comfy.sd.load_lora_for_models(patcher, None, comfy.utils.load_torch_file(str(path), safe_load=True), 1.0, 0)[0]

    @contextmanager
    def open(self, policy: Any, cfg: float = 1.0) -> Iterator[None]:
        with policy.prompts(self.prompts, self.negative, cfg, list(self.x.shape)):
            yield

    @torch.no_grad()
    def velocity(self, model: Any, cfg: float = 1.0) -> Tensor:
        """v of a patcher or a policy: one call for rows of different times and prompts."""
        if isinstance(model, self.backend.ComfyPolicy):
            with self.open(model, cfg):
                return model.velocity(self.x, TIMES, ROWS)
        with self.backend.ready(model, list(self.x.shape)):
            return self.backend.ModelVelocity(model, self.prompts, self.negative, cfg)(self.x, TIMES, ROWS)

    def scalar(self, policy: Any, cfg: float = 1.0) -> float:
        return (self.velocity(policy, cfg).double() * self.weighing).sum().item()

    def gradients(self, policy: Any, cfg: float = 1.0) -> dict[str, Tensor | None]:
        """The gradient of ``scalar`` in every tensor of the LoRA."""
        parameters = lora.tensors(policy.patcher.model.diffusion_model)
        with self.open(policy, cfg), policy.training():
            scalar = (policy.velocity(self.x, TIMES, ROWS).double() * self.weighing).sum()
            return dict(zip(parameters, torch.autograd.grad(scalar, list(parameters.values()), allow_unused=True)))

    def slope(self, policy: Any, direction: dict[str, Tensor], step: float, cfg: float = 1.0) -> float:
        """The derivative of ``scalar`` along a direction: central differences of two step sizes, extrapolated to 0 (Richardson)."""
        start = policy.weights()

        def at(length: float) -> float:
            policy.set_weights({name: weight + length * direction[name] for name, weight in start.items()})
            return self.scalar(policy, cfg)

        coarse, fine = ((at(h) - at(-h)) / (2 * h) for h in (step, step / 2))
        policy.set_weights(start)
        return (4 * fine - coarse) / 3

    def experience(self, cfg: float = 1.0, schedule: Schedule = SCHEDULE) -> Experience:
        """A rollout in the graph's code on a clean model, two members for each of two prompts, with made-up credit."""
        patcher, prompts, latent = self.patcher(), self.prompts[:2], self.architecture.latent
        with torch.no_grad(), self.backend.ready(patcher, [4, *latent]):
            path = rollout(self.backend.ModelVelocity(patcher, prompts, self.negative, cfg), schedule, [0, 1], 2, latent, seed=0)
        return Experience(
            states=path.states,
            velocities=path.velocities,
            rewards=torch.zeros(schedule.steps + 1, 4),
            advantages=torch.tensor([1.0, -1.0, 0.5, -0.5]).repeat(schedule.steps, 1),
            schedule=schedule,
            conditioning=prompts,
            negative=self.negative,
            texts=["", ""],
            cfg=cfg,
            origin=Origin(),
            job=self.job(),
            settings=UpdateSettings(updates=1),
            about={},
        )


def learnt(policy: Any, seed: int = 0) -> Any:
    """The policy with a LoRA that changes the model clearly."""
    generator = torch.Generator().manual_seed(seed + 100)
    policy.set_weights({name: w if "lora_A" in name else 0.05 * torch.randn(w.shape, generator=generator) for name, w in policy.weights().items()})
    return policy


def random_direction(policy: Any, seed: int = 0) -> dict[str, Tensor]:
    """A random change of the LoRA, in every tensor as large as its weights."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(w.shape, generator=generator) * w.std() for name, w in policy.weights().items()}


def distance(a: dict[str, Tensor | None], b: dict[str, Tensor | None]) -> float:
    """The largest relative difference of two sets of gradients in one tensor."""
    assert {name for name in a if a[name] is None} == {name for name in b if b[name] is None}
    return max(((a[name] - b[name]).norm() / b[name].norm().clamp_min(1e-20)).item() for name in a if a[name] is not None)
