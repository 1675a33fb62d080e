"""``bench memory``: the peak of one update row with checkpointing off and on, each in a process of its own."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from .errors import SetupError
from .networks import parameters_of, patcher_of
from .sizes import ACTIVATIONS

MIB = 2**20
LIMIT = 0.40  # of the peak without checkpointing
ABOUT = "one forward and backward of 1024 picture tokens through a network of 12 blocks and 768 features, fp32 on the CPU, beyond weights and gradients"
# So that glibc gives freed memory back at once and the peak of the process is that of the tensors.
GIVE_BACK = {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--one", choices=("off", "on"), help=argparse.SUPPRESS)  # what the two processes are told


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Figures of both and their ratios; ``failed`` where checkpointing saves too little."""
    if options.one:
        figures = one(options.one == "on")
        print(json.dumps(figures))
        return figures
    off, on = (in_process(setting) for setting in ("off", "on"))
    ratios = {key: on[key] / off[key] for key in ("tracker", "estimate", "process") if off[key]}
    print(f"{'':12}{'checkpointing off':>20}{'on':>12}{'ratio':>8}")
    for key, ratio in ratios.items():
        print(f"{key:12}{off[key] / MIB:16.0f} MiB{on[key] / MIB:8.0f} MiB{ratio:8.2f}")
    failed = [f"{key} {ratio:.2f}" for key, ratio in ratios.items() if ratio > LIMIT]
    print(f"at most {LIMIT:.2f} wanted: {'FAILED, ' + ', '.join(failed) if failed else 'passed'}")
    return {"about": ABOUT, "off": off, "on": on, "ratio": ratios, "limit": LIMIT, "failed": failed}


def in_process(setting: str) -> dict[str, Any]:
    """``one`` in a fresh process."""
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "bench", "memory", "--one", setting]
    done = subprocess.run(command, env={**os.environ, **GIVE_BACK}, stdout=subprocess.PIPE, encoding="utf-8", errors="replace")
    if done.returncode:
        raise SetupError(f"the measurement with checkpointing {setting} failed; its messages are above")
    return next(json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"tracker'))


def one(checkpointing: bool) -> dict[str, Any]:
    """Bytes: by the tracker on a real run, by the estimate without numbers, and of the whole process where the system tells."""
    from ..training.backends.comfy import ComfyPolicy
    from ..training.backends.made_up import made_up_prompt
    from ..training.config import Job

    patcher = patcher_of(ACTIVATIONS, torch.float32, torch.device("cpu"))
    policy = ComfyPolicy(patcher, Job(base={"kind": "bench"}), checkpointing)
    prompt, shape = made_up_prompt(patcher.model, tokens=ACTIVATIONS.tokens), list(ACTIVATIONS.latents["512"])
    estimate = policy.row_cost(shape, prompt, prompt, 1.0).of(1)
    x, t, rows = torch.randn(1, *shape), torch.full((1,), 0.5), torch.zeros(1, dtype=torch.long)
    with policy.prompts([prompt], prompt, 1.0, [1, *shape]):
        process = grown_by(lambda: _forward_and_backward(policy, x, t, rows))
        from ..training.backends.memory import peak_of

        tracker = peak_of(policy.velocity, policy.parameters(), x, t, rows)
    return {"tracker": tracker, "estimate": estimate, "process": process, "parameters": parameters_of(patcher)}


def _forward_and_backward(policy: Any, x: torch.Tensor, t: torch.Tensor, rows: torch.Tensor) -> None:
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with policy.training():
        policy.velocity(x, t, rows).float().square().mean().backward()


def grown_by(work: Any) -> int | None:
    """How much the process grew at most while it did ``work``, bytes; None on Windows."""
    import psutil

    try:
        import resource
    except ImportError:
        return None
    before = psutil.Process().memory_info().rss
    work()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before
