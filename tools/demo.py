"""``python dev.py demo``: the whole loop on a real ComfyUI with the small built-in model, then a page to play with."""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..training.core.advantages import SCHEMES
from ..training.core.transitions import LAWS
from ..training.job import RunFolder
from .evaluation import Evaluation, evaluate
from .local import COMFYUI, held_out, start_comfy
from .parity import lora_parity
from .report import contact_sheet, print_table, reward_curve
from .server import ComfyServer, Trainer
from .workflow import api_form

ROOT = Path(__file__).resolve().parent.parent
WORKFLOW = ROOT / "workflows" / "first_loop.json"


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    began = time.perf_counter()
    out = options.out.resolve()
    pack = Path(os.environ.get("STEPWISE_PACK", ROOT))
    log = out / "logs"
    output = out / "comfyui_output"
    with ComfyServer(COMFYUI, output, log / "comfyui.log") as server, Trainer(pack, output, log / "trainer.log") as trainer:
        print(f"ComfyUI is at {server.url}; the trainer is running")
        folder = RunFolder(output, free_name(output, f"demo_{options.credit}_{options.law}_seed{options.seed}"))
        before = evaluate(server, held_out(), None)
        iterations = Iterations(server, trainer, folder, options)
        iterations.run(options.iterations)
        after = evaluate(server, held_out(), folder.lora_name(folder.latest()["version"]))
        result = results(iterations, before, after, time.perf_counter() - began)
        leave(out, result, iterations, before, after)
        if not options.exit:
            serve(server, folder)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python dev.py demo", description="Fine-tune the built-in model to put shapes where the prompt says, through a real ComfyUI.")
    parser.add_argument("--iterations", type=int, default=30, help="how often the workflow is queued (default 30)")
    parser.add_argument("--credit", default="centred", choices=list(SCHEMES), help="how rewards become credit (default centred)")
    parser.add_argument("--law", default="flow", choices=list(LAWS), help="the transition law (default flow)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for pictures, LoRA and logs (default out/demo)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--exit", action="store_true", help="end when done instead of serving the page")
    options = parser.parse_args(arguments)
    if options.iterations < 1:
        parser.error("--iterations must be at least 1")
    return options


def free_name(output: Path, name: str) -> str:
    """``name``, or with a number when a run of that name is there already: a demo starts from the base model."""
    for number in range(1, 10_000):
        candidate = name if number == 1 else f"{name}_{number}"
        if not RunFolder(output, candidate).path.exists():
            return candidate
    raise SystemExit(f"{output} is full of runs named {name}; choose another --out")


def add_preview(prompt: dict[str, Any], source: str) -> str:
    """A node in ``prompt`` that shows the picture of the node ``source``; its id."""
    prompt["figure"] = {"class_type": "PreviewImage", "inputs": {"images": [source, 0]}}
    return "figure"


class Iterations:
    """The workflow, queued once an iteration through the server's own API."""

    def __init__(self, server: ComfyServer, trainer: Trainer, folder: RunFolder, options: argparse.Namespace) -> None:
        self.server, self.trainer, self.folder, self.options = server, trainer, folder, options
        workflow = json.loads(WORKFLOW.read_text("utf-8"))
        self.prompt = api_form(workflow, server.object_info())
        self.figure = add_preview(self.prompt, self.node("StepwiseGRPO_CreditVisualizer"))
        self.seconds: list[float] = []
        self.first_credit = b""  # the Credit Visualizer's picture while there is still much to learn

    def run(self, count: int) -> None:
        bar = tqdm(range(count), desc="iterations", unit="it")
        for i in bar:
            start = time.perf_counter()
            self._set(i)
            prompt_id = self.server.queue(self.prompt)
            outputs = self.server.wait(prompt_id, tick=self._check_trainer)["outputs"]
            self.seconds.append(time.perf_counter() - start)
            self.first_credit = self.first_credit or self._credit(outputs)
            events = self.events()
            if len(events) != i + 1:
                raise SystemExit(f"iteration {i + 1} made no version; see {self.trainer.log}")
            bar.set_postfix(reward=f"{events[-1]['reward_mean']:.3f}")

    def events(self) -> list[dict[str, Any]]:
        return self.folder.events()

    def _credit(self, outputs: dict[str, Any]) -> bytes:
        return self.server.picture(outputs[self.figure]["images"][0])

    def node(self, class_type: str) -> str:
        """Id of the first node of a class: the second Prompt List holds the prompts that are not trained on."""
        return next(id for id, node in self.prompt.items() if node["class_type"] == class_type)

    def _set(self, i: int) -> None:
        """What the page's widgets would be at the i-th press of Queue."""
        changes = {
            "StepwiseGRPO_PromptList": {"iteration": i, "seed": self.options.seed},
            "StepwiseGRPO_StepwiseSDESampler": {"seed": self.options.seed * 10_000 + i, "law": self.options.law, "eta": -1.0},
            "StepwiseGRPO_TweediePreviewReward": {"credit_scheme": self.options.credit},
            "StepwiseGRPO_GRPOLoRATrainer": {"run_name": self.folder.name, "wait": True},
            "StepwiseGRPO_LiveLoRA": {"run_name": self.folder.name},
        }
        for class_type, inputs in changes.items():
            self.prompt[self.node(class_type)]["inputs"] |= inputs

    def _check_trainer(self) -> None:
        if self.trainer.exit_code is not None:
            raise SystemExit(f"the trainer ended by itself. Its log: {self.trainer.log}\n{self.trainer.tail()}")


def results(iterations: Iterations, before: Evaluation, after: Evaluation, wall: float) -> dict[str, Any]:
    """The demo's figures as JSON."""
    events, options, folder = iterations.events(), iterations.options, iterations.folder
    file = folder.version_file(events[-1]["version"])
    start_comfy()
    parity, matched, total = lora_parity(file)
    return {
        "reward_before": before.reward,
        "reward_after": after.reward,
        "reward_curve": [event["reward_mean"] for event in events],
        "shape_ok_before": before.shape_ok,
        "shape_ok_after": after.shape_ok,
        "place_before": before.place,
        "place_after": after.place,
        "iterations": len(events),
        "wall_s": wall,
        "setup_s": float(os.environ.get("STEPWISE_SETUP_S", 0)),
        "time_split": time_split(events, iterations.seconds),
        "network_evaluations": sum(event["evaluations"] + event["update_evaluations"] for event in events),
        "lora": str(file),
        "keys_matched": matched,
        "keys_total": total,
        "parity_max_abs": parity,
        "ratio_error_max": max(event["ratio_error_max"] for event in events),
        "graph_velocity_error": max(event["graph_velocity_error"] for event in events),
        "zero_variance_groups": sum(event["zero_variance_groups"] for event in events),
        "versions": [event["version"] for event in events],
        "credit": options.credit,
        "law": options.law,
        "seed": options.seed,
    }


def time_split(events: list[dict[str, Any]], seconds: list[float]) -> dict[str, float]:
    """Seconds of all iterations: what the nodes and the trainer measured themselves, and what the graph adds."""
    spent = {"rollout": 0.0, "preview": 0.0, "reward": 0.0, "update": 0.0}
    for event in events:
        times = event["rollout_seconds"]
        spent["rollout"] += times["rollout"]
        spent["preview"] += times["preview"] + times["decode"]
        spent["reward"] += times["reward"]
        spent["update"] += event["seconds"]
    return {**spent, "graph overhead": sum(seconds) - sum(spent.values())}


def leave(out: Path, result: dict[str, Any], iterations: Iterations, before: Evaluation, after: Evaluation) -> None:
    """Write the pictures, the LoRA and the figures into ``out``."""
    texts = [text for text, _ in held_out()]
    title = f"{result['credit']}, {result['law']}, seed {result['seed']}"
    reward_curve(out / "reward_curve.png", result["reward_curve"], before.reward, after.reward, title)
    contact_sheet(out / "before_after.png", texts, before.images, after.images)
    (out / "credit.png").write_bytes(iterations.first_credit)
    shutil.copyfile(result["lora"], out / f"{iterations.folder.name}.safetensors")
    for path in filter(None, (out / "result.json", iterations.options.json)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1), "utf-8")
    print_table(result)
    print(f"\npictures, LoRA and logs: {out}")


def serve(server: ComfyServer, folder: RunFolder) -> None:
    """Keep the page open until Ctrl-C."""
    print(f"\nOpen {server.url} and drag {WORKFLOW} onto the page. Set run_name to {folder.name} to go on from here.")
    print("Ctrl-C ends ComfyUI and the trainer.", flush=True)
    try:
        while True:
            time.sleep(1)
            server.get("/system_stats")
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
