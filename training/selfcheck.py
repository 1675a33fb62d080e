"""Whether a model can be trained rightly, measured on the model itself before its first update.

    gradients -> those that are missing -> finite difference -> checkpointing -> precision -> keys

An architecture nobody has tried is trained when it passes, and refused with the reason when it does not. The policy's
own LoRA is put aside meanwhile and comes back as it was. The network is called on two states of the artist's prompts.
"""

# finite difference: Richardson's extrapolation of central differences, (4 D(h / 2) - D(h)) / 3; see NOTATION.md

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import lora
from .experience import Experience
from .faults import may_pass, out_of_memory

BOUND = 1e-3  # relative error of a directional derivative
SAME = 1e-4  # relative distance of gradients that should be equal; 1e-7 on a CPU, but kernels of graphics cards add up in any order
STILL = 1e-6  # relative change of the velocity by tensors that have no influence
NOISE = 1.0  # relative distance of gradients in the precision of the run from those in fp32; beyond it they are noise
STEPS = (0.1, 0.025, 0.00625, 0.0015)  # relative to the LoRA's own weights; the one that agrees best with its half is taken


@dataclass(frozen=True)
class Probe:
    """What the network is called with: states (N, ...) at times (N,), all under the first of ``prompts``."""

    prompts: list[list]
    negative: list
    cfg: float
    x: Tensor
    times: Tensor
    memory: int = 0
    """Bytes that the computation needs beside the weights, where it is known; in fp32 twice as much is left free."""

    @property
    def rows(self) -> Tensor:
        return torch.zeros(len(self.x), dtype=torch.long)

    @property
    def weighing(self) -> Tensor:
        """What the velocity is multiplied with to become one number."""
        generator = torch.Generator("cpu").manual_seed(7)
        return torch.randn(self.x.shape, generator=generator, dtype=torch.float64) / self.x.numel() ** 0.5


def probe_of(e: Experience, memory: int = 0) -> Probe:
    """One state of an experience, in the middle of its stochastic steps, under its own prompt."""
    step = e.schedule.stochastic[len(e.schedule.stochastic) // 2]
    return Probe(e.conditioning[:1], e.negative, e.cfg, e.states[step, :1], torch.tensor([e.schedule.times[step]]), memory)


@dataclass(frozen=True)
class Finding:
    """One measurement. ``passed`` is None where it could not be made; ``figure`` is for people, with what it is held against."""

    name: str
    passed: bool | None
    figure: str
    hint: str = ""
    """What a failure means or what helps."""


def examine(policy: Any, probe: Probe) -> list[Finding]:
    """All findings, the first failure last where the following ones would mean nothing. The policy is left as it was."""
    return list(findings_of(policy, probe))


def findings_of(policy: Any, probe: Probe) -> Iterator[Finding]:
    """The same one by one, as they are made; take all of them."""
    before = policy.weights()
    try:
        policy.set_weights(stirred(before))
        yield from _findings(policy, probe)
    finally:
        policy.set_weights(before)


def refusal(findings: list[Finding]) -> str | None:
    """Why the model must not be trained, or None."""
    failed = [f for f in findings if f.passed is False]
    return "; ".join(f"{f.name}: {f.figure}" + (f" ({f.hint})" if f.hint else "") for f in failed) or None


def stirred(weights: dict[str, Tensor], seed: int = 1) -> dict[str, Tensor]:
    """The LoRA with random B: with the B = 0 of a new one, half of all gradients would be zero.

    B is so large that the LoRA changes a weight by about a tenth of what it usually is, 1 / sqrt(inputs).
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    result = dict(weights)
    for name in weights:
        if name.endswith(".lora_A.weight"):
            a, b = weights[name], name.replace(".lora_A.", ".lora_B.")
            spread = a.double().std().clamp_min(1e-12) * a.shape[0] ** 0.5 * a.shape[1] ** 0.5
            result[b] = torch.randn(weights[b].shape, generator=generator) * (0.1 / float(spread))
    return result


def _findings(policy: Any, probe: Probe) -> Iterator[Finding]:
    try:
        with policy.exact():
            found = gradients(policy, probe, checkpointing=True)
            finite = _finite(found)
            yield finite
            if not finite.passed:
                return
            yield _missing(policy, probe, found)
            yield _finite_difference(policy, probe, found)
            yield _checkpointing(policy, probe, found)
    except RuntimeError as error:
        yield _failed(error)
        return
    yield _precision(policy, probe, found)
    yield _keys(policy)


def _failed(error: RuntimeError) -> Finding:
    if may_pass(error) and not out_of_memory(error):
        raise error
    if out_of_memory(error):
        return Finding("gradients", None, "memory does not suffice to compute one state in fp32, so nothing was compared")
    return Finding("gradients", False, f"backward fails: {str(error).splitlines()[0]}", "report the architecture")


def gradients(policy: Any, probe: Probe, checkpointing: bool | None = None) -> dict[str, Tensor | None]:
    """The gradient of the weighed velocity in every LoRA tensor, on the CPU; None where autograd has none."""
    with _open(policy, probe, checkpointing), policy.training():
        v = policy.velocity(probe.x, probe.times, probe.rows)
        parameters = policy.parameters()
        found = torch.autograd.grad((v.double() * probe.weighing.to(v.device)).sum(), parameters, allow_unused=True)
    return {name: None if g is None else g.detach().cpu() for name, g in zip(policy.weights(), found)}


@torch.no_grad()
def velocity(policy: Any, probe: Probe) -> Tensor:
    """The velocity of the probe's states, on the CPU."""
    with _open(policy, probe):
        return policy.velocity(probe.x, probe.times, probe.rows).float().cpu()


@contextmanager
def _open(policy: Any, probe: Probe, checkpointing: bool | None = None) -> Iterator[None]:
    with policy.checkpointed(checkpointing), policy.prompts(probe.prompts, probe.negative, probe.cfg, list(probe.x.shape), memory=2 * probe.memory):
        yield


def distance(a: dict[str, Tensor | None], b: dict[str, Tensor | None]) -> float:
    """The relative distance of two sets of gradients, over all tensors together; infinite where one lacks what the other has."""
    if {name for name in a if a[name] is None} != {name for name in b if b[name] is None}:
        return float("inf")
    there = [name for name in a if a[name] is not None]
    apart = sum((a[name].double() - b[name].double()).square().sum().item() for name in there)
    return (apart / max(sum(b[name].double().square().sum().item() for name in there), 1e-300)) ** 0.5


def _finite(found: dict[str, Tensor | None]) -> Finding:
    there = [g for g in found.values() if g is not None and g.any()]
    bad = [name for name, g in found.items() if g is not None and not g.isfinite().all()]
    if bad:
        return Finding("gradients", False, f"NaN or infinite in {len(bad)} of {len(found)} LoRA tensors, first {bad[0]}")
    return Finding("gradients", bool(there), f"{len(there)} of {len(found)} LoRA tensors have one")


def _missing(policy: Any, probe: Probe, found: dict[str, Tensor | None]) -> Finding:
    """A tensor may lack a gradient only if it has no influence: then any change of it leaves the velocity as it was."""
    dead = [name for name, g in found.items() if g is None or not g.any()]
    if not dead:
        return Finding("tensors without gradient", True, "none")
    before, weights = velocity(policy, probe), policy.weights()
    policy.set_weights({name: w + w.std() if name in dead else w for name, w in weights.items()})
    change = ((velocity(policy, probe) - before).norm() / before.norm()).item()
    policy.set_weights(weights)
    words = f"{len(dead)}, and changing them moves the velocity by {change:.1e}"
    return Finding("tensors without gradient", change <= STILL, words, f"a gradient is lost on its way to {dead[0]}")


def _finite_difference(policy: Any, probe: Probe, found: dict[str, Tensor | None]) -> Finding:
    """Along a direction in which every tensor pulls the same way, so that a wrong gradient cannot hide behind the others."""
    weights = policy.weights()
    generator = torch.Generator("cpu").manual_seed(3)
    direction = {}
    for name, w in weights.items():
        g = torch.zeros_like(w) if found[name] is None else found[name]
        direction[name] = torch.randn(w.shape, generator=generator).abs() * g.sign() * w.std()
    exact = sum((found[name].double() * direction[name].double()).sum().item() for name in weights if found[name] is not None)

    def at(length: float) -> float:
        policy.set_weights({name: w + length * direction[name] for name, w in weights.items()})
        return (velocity(policy, probe).double() * probe.weighing).sum().item()

    slopes = []
    for step in STEPS:
        coarse, fine = ((at(h) - at(-h)) / (2 * h) for h in (step, step / 2))
        slopes.append((abs(fine - coarse), (4 * fine - coarse) / 3))
    policy.set_weights(weights)
    error = abs(min(slopes)[1] / exact - 1)
    if policy.has_experts:  # a token that changes its expert is a jump, which no derivative knows
        return Finding("finite difference", None, f"relative error {error:.1e}, not held to a bound: tokens are sent to experts")
    return Finding("finite difference", error <= BOUND, f"relative error {error:.1e}, at most {BOUND:g}", "the gradients are wrong")


def _checkpointing(policy: Any, probe: Probe, found: dict[str, Tensor | None]) -> Finding:
    try:
        value = distance(gradients(policy, probe, checkpointing=False), found)
    except RuntimeError as error:
        if out_of_memory(error):
            return Finding("checkpointing", None, "without it memory does not suffice, so it was not compared")
        return Finding("checkpointing", False, f"without it backward fails: {str(error).splitlines()[0]}")
    return Finding("checkpointing", value <= SAME, f"changes gradients by {value:.1e}, at most {SAME:g}", "a block writes into what autograd has saved")


def _precision(policy: Any, probe: Probe, found: dict[str, Tensor | None]) -> Finding:
    value = distance(gradients(policy, probe), found)
    return Finding("own precision", value <= NOISE, f"gradients {value:.1e} away from those in fp32, at most {NOISE:g}", "choose another weight_dtype")


def _keys(policy: Any) -> Finding:
    matched, total = policy.matched_keys(lora.file_tensors(policy.weights(), policy.job.alpha, lora.prefix_of(policy.job)))
    return Finding("keys", matched == total, f"{matched} of {total} layers of a version file are known to its loaders")
