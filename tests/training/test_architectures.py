"""Every architecture through the whole way: rollout as in the graph, update, gradients, the version file in ComfyUI's stock loader.

The figures the tests compare with a bound are recorded as properties of each test; ``pytest -rP`` or ``-s`` prints them.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stepwise_grpo.tests.architectures import ARCHITECTURES, Architecture, dead_layers, detection_of, exists, prompt, write
from stepwise_grpo.training import lora
from stepwise_grpo.training.base import describe
from stepwise_grpo.training.comfyui import prepare
from stepwise_grpo.training.config import Job, Origin, UpdateSettings
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.experience import Experience
from stepwise_grpo.training.rollout import rollout
from stepwise_grpo.training.update import make_optimiser, update

SCHEDULE = Schedule((1.0, 0.8, 0.5, 0.0), "ddim", 0.7)
TIMES, ROWS = torch.tensor([0.9, 0.5, 0.2]), torch.tensor([0, 1, 2])
FP8 = torch.float8_e4m3fn
each = pytest.mark.parametrize("bench", ARCHITECTURES, indirect=True)
a_few = pytest.mark.parametrize("bench", ["sd3", "flux", "wan21", "ltxv", "qwen_image"], indirect=True)
Figure = Callable[[str, float], float]


class Bench:
    """One architecture: its checkpoint, prompts and states, and what is loaded from it."""

    def __init__(self, name: str, backend: Any, folder: Path) -> None:
        self.name, self.backend, self.folder = name, backend, folder
        self.architecture: Architecture = ARCHITECTURES[name]
        self.prompts = [prompt(self.architecture, seed) for seed in (1, 2, 3)]
        self.negative = prompt(self.architecture, 4)
        self.x = torch.randn(3, *self.architecture.latent, generator=torch.Generator().manual_seed(5))

    def file(self, dtype: torch.dtype = torch.float32, scaled: bool = False) -> Path:
        path = self.folder / f"{self.name}_{str(dtype).removeprefix('torch.')}{'_scaled' * scaled}.safetensors"
        return path if path.exists() else write(self.architecture, path, dtype, scaled)

    def job(self, targets: str = "attention", seed: int = 0) -> Job:
        path = self.file()
        return Job(base=describe("diffusion_models", path.name, path), targets=targets, rank=4, alpha=8.0, seed=seed)

    def patcher(self, dtype: torch.dtype = torch.float32, scaled: bool = False) -> Any:
        """As the stock loader gives it. Where it cannot choose the dtype by itself on a CPU, it is told."""
        import comfy.sd

        with detection_of(self.architecture):
            patcher = comfy.sd.load_diffusion_model(str(self.file(dtype, scaled)), {} if dtype == torch.float32 else {"dtype": dtype})
        if dtype == torch.bfloat16:
            patcher.set_model_compute_dtype(dtype)  # ComfyUI computes in fp32 on a CPU unless told
        return patcher

    def policy(self, checkpoint: bool = False, targets: str = "attention", seed: int = 0) -> Any:
        """A policy as the trainer opens it, with a LoRA that has already learnt something."""
        with detection_of(self.architecture):
            policy = self.backend.open_policy(self.job(targets, seed), checkpoint)
        return learnt(policy, seed)

    @torch.no_grad()
    def velocity(self, model: Any, cfg: float = 1.0) -> Tensor:
        """v of a patcher or a policy, one call for rows of different times and prompts."""
        if isinstance(model, self.backend.ComfyPolicy):
            with self.open(model, cfg):
                return model.velocity(self.x, TIMES, ROWS)
        with self.backend.ready(model, list(self.x.shape)):
            return self.backend.ModelVelocity(model, self.prompts, self.negative, cfg)(self.x, TIMES, ROWS)

    @contextmanager
    def open(self, policy: Any, cfg: float = 1.0) -> Iterator[None]:
        with policy.prompts(self.prompts, self.negative, cfg, list(self.x.shape)):
            yield

    def gradients(self, policy: Any, cfg: float = 1.0) -> tuple[Tensor, dict[str, Tensor | None]]:
        """A scalar of the velocity and its gradient in the LoRA."""
        with self.open(policy, cfg), policy.training():
            parameters = lora.tensors(policy.patcher.model.diffusion_model)
            scalar = (policy.velocity(self.x, TIMES, ROWS).double() * weighing(self.x)).sum()
            found = torch.autograd.grad(scalar, list(parameters.values()), allow_unused=True)
        return scalar.detach(), dict(zip(parameters, found))


def learnt(policy: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed + 100)
    policy.set_weights({name: w if "lora_A" in name else 0.05 * torch.randn(w.shape, generator=generator) for name, w in policy.weights().items()})
    return policy


def weighing(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64) / x.numel() ** 0.5


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def backend(comfyui_folder: Path, checkpoints: Path) -> Iterator[Any]:
    """The trainer's ComfyUI backend in this process, on the CPU, with the tiny checkpoints as its diffusion models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        prepare({"root": str(comfyui_folder), "argv": ["--cpu"]}, None)
        from stepwise_grpo.training.backends import comfy as backend

        patch.setitem(backend.folder_paths.folder_names_and_paths, "diffusion_models", ([str(checkpoints)], {".safetensors"}))
        yield backend


@pytest.fixture
def bench(request: pytest.FixtureRequest, backend: Any, checkpoints: Path) -> Bench:
    if not exists(ARCHITECTURES[request.param]):
        pytest.skip(f"this ComfyUI has no {request.param}")
    return Bench(request.param, backend, checkpoints)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    def record(name: str, value: float) -> float:
        record_property(name, f"{value:.1e}")
        print(f"{name}: {value:.1e}")
        return value

    return record


@each
@pytest.mark.parametrize("cfg", [1.0, 4.0])
def test_rows_with_their_own_times_and_prompts_equal_separate_calls(bench, cfg, figure):
    patcher = bench.patcher()
    together = bench.velocity(patcher, cfg)
    with torch.no_grad(), bench.backend.ready(patcher, list(bench.x.shape)):
        velocity = bench.backend.ModelVelocity(patcher, bench.prompts, bench.negative, cfg)
        apart = torch.cat([velocity(bench.x[[i]], TIMES[[i]], ROWS[[i]]) for i in range(3)])
    assert together.std() > 0.1 and (together[0] - together[1]).std() > 0.1
    assert figure("rows", (together - apart).abs().max().item()) <= 1e-4


def experience_of(bench: Bench, cfg: float) -> Experience:
    """A rollout in the graph's code on a clean model, with made-up credit."""
    patcher, prompts = bench.patcher(), bench.prompts[:2]
    with torch.no_grad(), bench.backend.ready(patcher, [2, *bench.architecture.latent]):
        path = rollout(bench.backend.ModelVelocity(patcher, prompts, bench.negative, cfg), SCHEDULE, [0, 1], 2, bench.architecture.latent, seed=0)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5]).expand(SCHEDULE.steps, 4).clone()
    return Experience(
        states=path.states, velocities=path.velocities, rewards=torch.zeros(SCHEDULE.steps + 1, 4), advantages=advantages, schedule=SCHEDULE,
        conditioning=prompts, negative=bench.negative, texts=["", ""], cfg=cfg, origin=Origin(), job=bench.job(),
        settings=UpdateSettings(updates=1), about={},
    )  # fmt: skip


@each
@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "checkpointed"])
def test_the_graphs_rollout_is_trained_on_from_a_ratio_of_1(bench, checkpoint, figure):
    experience = experience_of(bench, cfg=1.0)
    with detection_of(bench.architecture):
        policy = bench.backend.open_policy(bench.job(), checkpoint)
    before = policy.weights()
    with policy.prompts(experience.conditioning, experience.negative, experience.cfg, list(experience.states[0].shape)):
        metrics = update(policy, make_optimiser(policy, experience.settings), experience, seed=0)
    assert figure("ratio_error_max", metrics["ratio_error_max"]) <= 1e-6
    assert figure("graph_velocity_error", metrics["graph_velocity_error"]) <= 1e-5
    assert 0 < metrics["grad_norm"] < float("inf")
    moved = {name for name, weight in policy.weights().items() if not torch.equal(weight, before[name])}
    assert moved >= {name for name in before if "lora_B" in name and not dead_layers(bench.architecture, name)}


def directional(bench: Bench, policy: Any, cfg: float, step: float) -> tuple[float, Callable[[float], float]]:
    """A random direction in the LoRA, and the central difference of the scalar along it for a step size."""
