"""``python dev.py compare``: stepwise against uniform credit on the demo model, all seeds reported.

The same core and the same model code as the graph and the trainer, in one process. Each scheme starts from the same LoRA,
prompts and noise; progress is the placement reward of fixed held-out prompts and noises, sampled by the plain ODE.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm

from .local import demo_policy, encode, held_out, start_comfy, training_prompts

ITERATIONS = {"uniform": 80, "uniform_weighted": 40, "paper": 40, "centred": 40}
EVERY = 4  # iterations between looks at the held-out prompts
PROMPTS, GROUP, STEPS = 4, 8, 10
LAW, ETA, BETA = "flow", 0.7, 0.02  # as in the demo


@dataclass
class Curve:
    """One run: held-out reward after ``iterations[i]``, with the network evaluations and seconds spent until then."""

    scheme: str
    seed: int
    iterations: list[int]
    reward: list[float]
    evaluations: list[int]
    seconds: list[float]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python dev.py compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default 3)")
    parser.add_argument("--json", type=Path, help="write curves and table to this file")
    parser.add_argument("--substeps", type=int, default=2, help="T' of the previews (default 2)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="of all schemes (default 0.002)")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    start_comfy()
    bench = Bench(options.substeps, options.learning_rate)
    curves = [bench.run(scheme, seed) for seed in range(options.seeds) for scheme in ITERATIONS]
    rows = table(curves)
    print_table(rows)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"settings": bench.settings, "table": rows, "curves": [asdict(c) for c in curves]}, indent=1), "utf-8")
    return 0


class Bench:
    """The model, the prompts and the reward, shared by all runs."""

    def __init__(self, substeps: int, learning_rate: float) -> None:
        import comfy.samplers

        from ..demo.comfy_model import load_demo_vae
        from ..training.rewards import make_reward

        self.policy, self.vae = demo_policy(), load_demo_vae()
        self.reward, self.held_out = make_reward({"reward": "placement"}), held_out()[::2]
        sampling = self.policy.patcher.get_model_object("model_sampling")
        self.sigmas = comfy.samplers.calculate_sigmas(sampling, "simple", STEPS).tolist()
        self.negative = encode("")
        self.settings = {"substeps": substeps, "learning_rate": learning_rate, "beta": BETA, "law": LAW, "eta": ETA, "prompts": PROMPTS, "group": GROUP, "steps": STEPS}

    def run(self, scheme: str, seed: int) -> Curve:
        """One run of ``scheme`` from a fresh LoRA."""
        from ..training.iterate import iterate
        from ..training.lora import first_weights
        from ..training.optimiser import make_optimiser
        from ..training.prompts import choose
        from ..training.trajectory import Prompt

        policy, plan = self.policy, self._plan(scheme)
        policy.set_weights(first_weights(policy.weights(), replace(policy.job, seed=seed)))
        optimiser = make_optimiser(policy, plan.update)
        texts = training_prompts()
        curve = Curve(scheme, seed, [0], [self.evaluate()], [0], [0.0])
        evaluations, seconds = 0, 0.0
        bar = tqdm(range(ITERATIONS[scheme]), desc=f"{scheme:17} seed {seed}")
        for i in bar:
            prompts = [Prompt(texts[k], k, encode(texts[k])) for k in choose(len(texts), PROMPTS, i, seed)]
            start = time.perf_counter()
            _, metrics = iterate(policy, optimiser, plan, prompts, self.negative, self.decode, self.reward, seed * 10_000 + i)
            seconds += time.perf_counter() - start
            evaluations += metrics["evaluations"]
            if (i + 1) % EVERY == 0:
                curve.iterations.append(i + 1)
                curve.reward.append(self.evaluate())
                curve.evaluations.append(evaluations)
                curve.seconds.append(seconds)
                bar.set_postfix(reward=f"{curve.reward[-1]:.3f}")
        return curve

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        return self.vae.decode(self.policy.patcher.model.process_latent_out(latents))

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean reward of the held-out prompts under the plain ODE, always from the same noises."""
        from ..training.core.schedule import Schedule
        from ..training.rollout import rollout

        prompts = [encode(text) for text, _ in self.held_out]
        schedule = Schedule(tuple(self.sigmas), "ddim", 0.0)
        with self.policy.prompts(prompts, self.negative, 1.0, [len(prompts), 16, 16, 16]):
            path = rollout(self.policy.velocity, schedule, [seed for _, seed in self.held_out], 1, (16, 16, 16), seed=0)
        return self.reward.score(self.decode(path.states[-1]), [text for text, _ in self.held_out]).mean().item()

    def _plan(self, scheme: str):
        from ..training.config import PreviewSettings, UpdateSettings
        from ..training.core.schedule import Schedule
        from ..training.iterate import Plan

        schedule = Schedule(tuple(self.sigmas), LAW, ETA)
        preview = PreviewSettings(scheme=scheme, substeps=self.settings["substeps"], rows_per_call=320)
        update = UpdateSettings(learning_rate=self.settings["learning_rate"], beta=BETA, rows_per_call=160)
        return Plan(schedule=schedule, group_size=GROUP, shape=(16, 16, 16), cfg=1.0, preview=preview, update=update)


def smoothed(values: list[float]) -> list[float]:
    """[1 2 1] / 4, ends kept: one look is noisy."""
    inner = [(a + 2 * b + c) / 4 for a, b, c in zip(values, values[1:], values[2:])]
    return [values[0], *inner, values[-1]]


def crossing(curve: Curve, target: float) -> dict[str, float] | None:
    """Iterations, network evaluations and seconds at which the smoothed curve first reaches ``target``; None = never."""
    reward = smoothed(curve.reward)
    for i in range(1, len(reward)):
        if reward[i] >= target:
            part = max((target - reward[i - 1]) / max(reward[i] - reward[i - 1], 1e-9), 0.0)
            axes = {"iterations": curve.iterations, "evaluations": curve.evaluations, "seconds": curve.seconds}
            return {name: values[i - 1] + part * (values[i] - values[i - 1]) for name, values in axes.items()}
    return None


def table(curves: list[Curve]) -> list[dict]:
    """A row for each scheme: crossings of 50 % and 90 % of the gain uniform credit reached, by seed and as a median."""
    ends = {c.seed: statistics.mean(c.reward[-3:]) for c in curves if c.scheme == "uniform"}
    rows = []
    for scheme in ITERATIONS:
        runs = [c for c in curves if c.scheme == scheme]
        row = {"scheme": scheme, "ran": ITERATIONS[scheme], "start": [c.reward[0] for c in runs], "end": [statistics.mean(c.reward[-3:]) for c in runs]}
        for share in (50, 90):
            hits = [crossing(c, c.reward[0] + share / 100 * (ends[c.seed] - c.reward[0])) for c in runs]
            row[f"to_{share}"] = {key: [hit and hit[key] for hit in hits] for key in ("iterations", "evaluations", "seconds")}
        rows.append(row)
    return rows


def print_table(rows: list[dict]) -> None:
    print("\nto 50 % and 90 % of the gain that uniform credit reached in its 80 iterations; median [each seed]; - = not reached")
    print(f"{'credit':17} {'end of run':>22}  {'iterations 50 %':>26} {'90 %':>26}  {'evaluations 90 %':>18} {'seconds 90 %':>13}")
    for row in rows:
        cells = [median_of(row["end"], ".2f"), median_of(row["to_50"]["iterations"], ".0f"), median_of(row["to_90"]["iterations"], ".0f")]
        more = [median_of(row["to_90"]["evaluations"], ".0f", False), median_of(row["to_90"]["seconds"], ".0f", False)]
        print(f"{row['scheme']:17} {cells[0]:>22}  {cells[1]:>26} {cells[2]:>26}  {more[0]:>18} {more[1]:>13}")


def median_of(values: list, form: str, each: bool = True) -> str:
    """'12 [11 12 14]', counting a seed that never got there as infinitely late."""
    middle = statistics.median(float("inf") if v is None else v for v in values)
    shown = "-" if middle == float("inf") else f"{middle:{form}}"
    return shown if not each else f"{shown} [{' '.join('-' if v is None else f'{v:{form}}' for v in values)}]"
