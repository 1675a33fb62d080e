"""Graphs in API form for the tests: the shipped workflow made small, and changes to it."""

import json
import time
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from stepwise_grpo.tools.server import ComfyServer, Trainer
from stepwise_grpo.tools.workflow import api_form
from stepwise_grpo.training import lora
from stepwise_grpo.training.config import Job
from stepwise_grpo.training.job import RunFolder, digest_of, write_whole

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOW = ROOT / "workflows" / "first_loop.json"
FLOW = ROOT / "demo" / "weights" / "demo_flow.safetensors"
Graph = dict[str, Any]
SMALL = {
    "BasicScheduler": {"steps": 3},
    "StepwiseGRPO_PromptList": {"prompts_per_iteration": 2},
    "StepwiseGRPO_StepwiseSDESampler": {"group_size": 2},
    "StepwiseGRPO_TweediePreviewReward": {"substeps": 1},
}


def first_loop(server: ComfyServer, run: str, seed: int = 0) -> Graph:
    """workflows/first_loop.json with 2 prompts x 2 pictures x 3 steps, for ``run``."""
    graph = api_form(json.loads(WORKFLOW.read_text("utf-8")), server.object_info())
    look = graph.pop(find(graph, "StepwiseGRPO_HeldOutPictures"))  # it has tests of its own
    del graph[look["inputs"]["positive"][0]]
    for kind, values in SMALL.items():
        change(graph, kind, **values)
    change(graph, "StepwiseGRPO_StepwiseSDESampler", seed=seed)
    change(graph, "StepwiseGRPO_PromptList", iteration=seed)
    change(graph, "StepwiseGRPO_LiveLoRA", run_name=run)
    return change(graph, "StepwiseGRPO_GRPOLoRATrainer", run_name=run)


def find(graph: Graph, kind: str) -> str:
    """Id of the one node of a class."""
    (found,) = [id for id, node in graph.items() if node["class_type"] == kind]
    return found


def change(graph: Graph, kind: str, **inputs: Any) -> Graph:
    graph[find(graph, kind)]["inputs"].update(inputs)
    return graph


def insert(graph: Graph, consumer: str, name: str, kind: str, through: str, output: int = 0, **inputs: Any) -> Graph:
    """Put a new node of class ``kind`` into the line that ends at ``consumer``'s input ``name``; the line enters it at ``through``."""
    id = f"new{len(graph)}"
    target = graph[find(graph, consumer)]["inputs"]
    graph[id] = {"class_type": kind, "inputs": {through: target[name], **inputs}}
    target[name] = [id, output]
    return graph


def add(graph: Graph, kind: str, **inputs: Any) -> str:
    """A new node; its id."""
    id = f"new{len(graph)}"
    graph[id] = {"class_type": kind, "inputs": inputs}
    return id


def note(outputs: dict[str, Any], graph: Graph) -> str:
    """What the trainer node says."""
    return outputs[find(graph, "StepwiseGRPO_GRPOLoRATrainer")]["text"][0]


def version_by_hand(output: Path, run: str, version: int = 1, size: float = 0.01) -> RunFolder:
    """A run with a version that no trainer made: random LoRA tensors for the demo model's attention layers."""
    folder, generator = RunFolder(output, run), torch.Generator().manual_seed(version)
    layers = {name.removesuffix(".weight"): w.shape for name, w in safetensors.torch.load_file(FLOW).items() if name.endswith("attn.qkv.weight")}
    weights = {}
    for name, (rows, columns) in layers.items():
        name = name.removeprefix("model.diffusion_model.").removeprefix("diffusion_model.")
        weights[f"{name}.lora_A.weight"] = torch.randn(4, columns, generator=generator) * size
        weights[f"{name}.lora_B.weight"] = torch.randn(rows, 4, generator=generator) * size
    data = lora.save(weights, Job(base={"kind": "demo"}, rank=4, alpha=8), {"run": run, "version": version})
    write_whole(folder.version_file(version), data)
    folder.write_latest({"version": version, "file": folder.version_file(version).name, "digest": digest_of(data), "experience": ""})
    return folder


def wait_until_alive(trainer: Trainer, output: Path) -> None:
    """Before that the trainer node would not wait for it."""
    deadline = time.monotonic() + 120
    while not RunFolder(output, "any").trainer_is_alive():
        assert trainer.exit_code is None and time.monotonic() < deadline, trainer.tail()
        time.sleep(0.1)
