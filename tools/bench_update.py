"""``bench update``: seconds of rollout, preview and update on the demo model, as in the demo."""

import argparse
import statistics
import time
from typing import Any

from .local import demo_policy, encode, training_prompts


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompts", type=int, default=4, help="prompts of an iteration (default 4)")
    parser.add_argument("--repeat", type=int, default=3, help="iterations after a first one that does not count (default 3)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of an iteration's parts."""
    from ..demo.comfy_model import load_demo_vae
    from ..training.config import PreviewSettings, UpdateSettings
    from ..training.core.schedule import Schedule
    from ..training.iterate import Plan, iterate
    from ..training.optimiser import make_optimiser
    from ..training.rewards import make_reward
    from ..training.trajectory import Prompt

    policy, vae, reward = demo_policy(), load_demo_vae(), make_reward({"reward": "placement"})
    schedule = Schedule(tuple(1 - k / 10 for k in range(11)), "flow", 0.7)
    update = UpdateSettings(learning_rate=2e-3, beta=0.02)
    plan = Plan(schedule=schedule, group_size=8, shape=(16, 16, 16), cfg=1.0, preview=PreviewSettings(), update=update)
    texts, optimiser, seconds = training_prompts()[: options.prompts], make_optimiser(policy, update), []
    prompts = [Prompt(text, i, encode(text)) for i, text in enumerate(texts)]
    decode = lambda latents: vae.decode(policy.patcher.model.process_latent_out(latents))
    for seed in range(options.repeat + 1):
        start = time.perf_counter()
        _, metrics = iterate(policy, optimiser, plan, prompts, encode(""), decode, reward, seed)
        seconds.append({"rollout": metrics["seconds_rollout"], "update": metrics["seconds"], "all": time.perf_counter() - start})
    median = {key: statistics.median(entry[key] for entry in seconds[1:]) for key in seconds[0]}
    print(f"{len(prompts)} prompts x 8 pictures x 10 steps: rollout {median['rollout']:.1f} s, update {median['update']:.1f} s, with previews {median['all']:.1f} s")
    return {"about": "the demo model, median seconds of an iteration", "prompts": len(prompts), "group_size": 8, "steps": 10, "seconds": median}
