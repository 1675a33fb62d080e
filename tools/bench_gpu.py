"""``bench gpu``: rollout and update through the trainer's own way at full size, random weights made on the card.

``--small`` does the same with tiny networks on any device; its figures say nothing about the real sizes.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from .errors import SetupError
from .networks import FP8, parameters_of, patcher_of
from .sizes import SIZES, SMALL, Size

PRECISION = {"SD3.5 Medium": torch.bfloat16, "Flux.1 dev": FP8, "Qwen-Image": FP8}
MEMBERS, STEPS = 2, 4


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--small", action="store_true", help="tiny networks, to try the command where there is no card")
    parser.add_argument("--model", action="append", choices=list(PRECISION), help="only this one; may be given several times")
    parser.add_argument("--resolution", default="512", choices=("512", "1024"), help="side of the pictures in pixels (default 512)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """{about, device, models: {name: figures}}: seconds, and the peak of memory beside the estimate."""
    import comfy.model_management as devices

    device = devices.get_torch_device()
    if device.type != "cuda" and not options.small:
        raise SetupError("bench gpu needs a CUDA graphics card, and there is none here. `python dev.py bench gpu --small` tries the command with tiny networks.")
    sizes, models = SMALL if options.small else SIZES, {}
    for name in options.model or PRECISION:
        latent = sizes[name].latents["64" if options.small else options.resolution]
        models[name] = figures(name, sizes[name], latent, device)
        print_figures(name, models[name])
    about = "tiny networks: these figures are not of the real sizes" if options.small else f"random weights at full size, {options.resolution} px, cfg 1, checkpointing"
    if options.small:
        print(about)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {"about": about, "real_sizes": not options.small, "device": name, "memory_bytes": int(devices.get_total_memory(device)), "models": models}


def figures(name: str, size: Size, latent: tuple[int, ...], device: torch.device) -> dict[str, Any]:
    """One model's rollout of one prompt and the update from it."""
    from ..training.backends.comfy import ComfyPolicy
    from ..training.config import Job

    dtype = PRECISION[name] if device.type == "cuda" else torch.float32
    patcher = patcher_of(size, dtype, device, device)
    policy = ComfyPolicy(patcher, Job(base={"kind": "bench", "name": name}), checkpoint=True)
    with tempfile.TemporaryDirectory() as folder:
        event = iteration(policy, size, latent, Path(folder))
    kept = ("rows_per_call", "memory_estimate_bytes", "memory_peak_bytes", "ratio_error_max", "graph_velocity_error", "grad_norm")
    seconds = {"rollout": event["rollout_seconds"]["rollout"], "update": event["seconds"]}
    parameters = parameters_of(patcher) - sum(p.numel() for p in policy.parameters())
    return {"parameters": parameters, "weights": str(dtype).removeprefix("torch."), "latent": latent, "seconds": seconds, **{key: event[key] for key in kept}}


def iteration(policy: Any, size: Size, latent: tuple[int, ...], output: Path) -> dict[str, Any]:
    """The event of an experience with made-up rewards, rolled out here and trained on as the trainer does."""
    from ..training.backends.made_up import made_up_prompt
    from ..training.config import Origin, UpdateSettings, to_json
    from ..training.core.schedule import Schedule
    from ..training.experience import pack
    from ..training.graph_run import GraphRun
    from ..training.job import RunFolder
    from ..training.preview import credit_of
    from ..training.rollout import rollout
    from ..training.trajectory import Prompt, Trajectory

    schedule, start = Schedule(tuple(1 - k / STEPS for k in range(STEPS + 1)), "ddim", 0.7), time.perf_counter()
    prompt, negative = (made_up_prompt(policy.patcher.model, seed, size.tokens) for seed in (0, 1))
    with torch.no_grad(), policy.prompts([prompt], negative, 1.0, [MEMBERS, *latent]):
        path = rollout(policy.velocity, schedule, [0], MEMBERS, latent, seed=0)
    seconds = time.perf_counter() - start
    trajectory = Trajectory(path.states, path.velocities, schedule, (Prompt("", 0, prompt),), negative, 1.0, 0, Origin(), policy.job.base, path.evaluations, seconds)
    rewards = torch.randn(STEPS + 1, MEMBERS, generator=torch.Generator().manual_seed(0))
    credit = credit_of(trajectory, rewards, "uniform", {"reward": "made up"}, None, 0, {})
    folder = RunFolder(output, "bench")
    folder.agree_on_job(to_json(policy.job))
    folder.queue(pack(trajectory, credit, policy.job, UpdateSettings(updates=1)))
    (file,) = folder.waiting()
    return GraphRun(folder, policy.job, policy).train(file, "bench", print)


def print_figures(name: str, found: dict[str, Any]) -> None:
    peak = found["memory_peak_bytes"]
    measured = f"{peak / 2**30:.2f} GiB measured" if peak else "not measured on this device"
    print(f"{name}: {found['parameters'] / 1e9:.3f} B parameters, rollout {found['seconds']['rollout']:.1f} s, update {found['seconds']['update']:.1f} s, "
          f"memory {found['memory_estimate_bytes'] / 2**30:.2f} GiB estimated, {measured}")  # fmt: skip
