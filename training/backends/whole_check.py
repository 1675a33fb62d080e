"""The self-check of a model file from end to end: rollout, update, version file, stock loader. One model in memory at a time."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import comfy.model_management
import comfy.sd
import safetensors.torch
import torch
from torch import Tensor

from .. import lora
from ..base import Unfit
from ..capacity import Fit, gib
from ..config import Job, Origin, UpdateSettings
from ..core.schedule import Schedule
from ..experience import Experience
from ..optimiser import make_optimiser
from ..rollout import rollout
from ..selfcheck import Finding, Probe, findings_of, refusal, stirred, velocity
from ..update import RefusedExperience, update
from .comfy import ComfyPolicy
from .loading import check_flow_matching
from .made_up import made_up_prompt, made_up_states
from .velocity import ModelVelocity, ready

SCHEDULE = Schedule((1.0, 0.75, 0.4, 0.0), "ddim", 0.7)
GROUP = 2
PARITY = 1e-4  # largest difference of velocities where weights and computation are fp32
MERGING = 0.5  # the same as a share of the LoRA's effect where the stock loader rounds the merged weights


@dataclass(frozen=True)
class Setting:
    """What the check is made with; ``size`` in pixels an edge."""

    job: Job
    size: int
    cfg: float


def check_model(load: Callable[[], Any], setting: Setting) -> Iterator[Finding]:
    """Findings as they are made. ``load()`` gives a fresh ModelPatcher of the model; after a failure no more are made."""
    patcher = load()
    try:
        check_flow_matching(patcher)
    except Unfit as error:
        yield Finding("flow matching", False, str(error))
        return
    yield Finding("flow matching", True, type(patcher.model).__name__)
    probe, experience = _probe(patcher, setting), _rolled_out(patcher, setting)
    policy = ComfyPolicy(patcher, setting.job, checkpoint=True)
    findings = []
    for finding in findings_of(policy, probe):
        findings.append(finding)
        yield finding
    if refusal(findings):
        return
    fit = policy.rows_that_fit(experience)
    yield Finding("memory", bool(fit.rows), fit.message)
    if not fit.rows:
        return
    findings = list(_update(policy, experience, fit))
    yield from findings
    if refusal(findings):
        return
    policy.set_weights(stirred(policy.weights()))
    trained, file = velocity(policy, probe), lora.save(policy.weights(), setting.job, {"run": "check", "version": 1})
    with policy.base():
        effect = (velocity(policy, probe) - trained).abs().mean().item()
    exact = _is_fp32(patcher)
    del policy, patcher
    comfy.model_management.unload_all_models()
    yield _stock(load(), file, probe, trained, effect, exact)


def _probe(patcher: Any, setting: Setting) -> Probe:
    prompt, negative = made_up_prompt(patcher.model, 1), made_up_prompt(patcher.model, 2)
    return Probe([prompt], negative, setting.cfg, made_up_states(patcher.model, 2, setting.size), torch.tensor([0.8, 0.4]))


def _rolled_out(patcher: Any, setting: Setting) -> Experience:
    """Two members of one prompt, rolled out as in the graph, with made-up credit."""
    prompt, negative = made_up_prompt(patcher.model, 1), made_up_prompt(patcher.model, 2)
    shape = made_up_states(patcher.model, 1, setting.size).shape[1:]
    with torch.no_grad(), ready(patcher, [GROUP, *shape]):
        path = rollout(ModelVelocity(patcher, [prompt], negative, setting.cfg), SCHEDULE, [0], GROUP, shape, seed=0)
    return Experience(
        states=path.states,
        velocities=path.velocities,
        rewards=torch.zeros(SCHEDULE.steps + 1, GROUP),
        advantages=torch.tensor([1.0, -1.0]).repeat(SCHEDULE.steps, 1),
        schedule=SCHEDULE,
        conditioning=[prompt],
        negative=negative,
        texts=[""],
        cfg=setting.cfg,
        origin=Origin(),
        job=setting.job,
        settings=UpdateSettings(updates=1),
        about={},
    )


def _update(policy: ComfyPolicy, e: Experience, fit: Fit) -> Iterator[Finding]:
    """One real update in the model's own precision, with as many rows a call as fit."""
    start = time.perf_counter()
    try:
        with policy.prompts(e.conditioning, e.negative, e.cfg, [fit.rows, *e.states.shape[2:]], memory=fit.beside_weights):
            metrics = update(policy, make_optimiser(policy, e.settings), e, seed=0)
    except RefusedExperience as refused:
        yield Finding("update", False, str(refused))
        return
    seconds, peak, ratio = time.perf_counter() - start, policy.peak_bytes(), metrics["ratio_error_max"]
    yield Finding("ratio", ratio <= 1e-6, f"starts at 1 +- {ratio:.1e}, at most 1e-06", "the model computes differently with gradients")
    yield Finding("graph and trainer", True, f"velocities differ by {metrics['graph_velocity_error']:.1e}")
    words = f"{seconds:.1f} s for {metrics['update_evaluations']} rows through the network" + (f", {gib(peak)} at most" if peak else "")
    yield Finding("update", metrics["grad_norm"] > 0, words)


def _is_fp32(patcher: Any) -> bool:
    return {parameter.dtype for parameter in patcher.model.diffusion_model.parameters()} == {torch.float32} and patcher.model.manual_cast_dtype is None


def _stock(patcher: Any, file: bytes, probe: Probe, trained: Tensor, effect: float, exact: bool) -> Finding:
    """The version file in ComfyUI's own loader on a fresh model."""
    tensors = safetensors.torch.load(file)
    patched, _ = comfy.sd.load_lora_for_models(patcher, None, tensors, 1.0, 0)
    layers = sum(name.endswith(".lora_A.weight") for name in tensors)
    with torch.no_grad(), ready(patched, list(probe.x.shape)):
        stock = ModelVelocity(patched, probe.prompts, probe.negative, probe.cfg)(probe.x, probe.times, probe.rows).float().cpu()
    apart = (stock - trained).abs()
    words = f"{len(patched.patches)} of {layers} layers; velocities differ by {apart.max().item():.1e}, {apart.mean().item() / effect:.1%} of the LoRA's effect"
    close = apart.max().item() <= PARITY if exact else apart.mean().item() <= MERGING * effect
    hint = "the stock loader merges this LoRA into other weights" if exact else "choose apply_as: unmerged in Live LoRA, or another weight_dtype"
    return Finding("stock loader", close and len(patched.patches) == layers, words, hint)
