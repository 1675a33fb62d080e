"""What the demo really makes, for the thumbnails: the two demo workflows, queued through the server's API."""

import json
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from ...training.experience import unpack
from ...training.job import RunFolder, read_json
from .. import local
from ..server import ComfyServer
from ..workflow import api_form
from .drawing import Picture

Graph = dict[str, Any]


def graph_of(server: ComfyServer, file: Path) -> Graph:
    return api_form(json.loads(file.read_text("utf-8")), server.object_info())


def nodes_of(graph: Graph, name: str) -> list[str]:
    """Ids of this pack's nodes of a class."""
    return [id for id, node in graph.items() if node["class_type"] == f"StepwiseGRPO_{name}"]


def show(graph: Graph, source: str, output: int) -> str:
    """A Preview Image node behind an output; its id."""
    id = f"show{len(graph)}"
    graph[id] = {"class_type": "PreviewImage", "inputs": {"images": [source, output]}}
    return id


def pictures_of(server: ComfyServer, outputs: dict[str, Any], id: str) -> list[Picture]:
    return [Image.open(BytesIO(server.picture(image))).convert("RGB") for image in outputs[id]["images"]]


@dataclass
class Compared:
    """The same pictures under two ways to give credit."""

    previews: list[list[Picture]]
    """(B, K + 1): the clean estimate of every state; the last one is the finished picture."""
    gains: list[list[float]]
    """(B, K)."""
    advantages: dict[str, list[list[float]]]
    """{run: (B, K)}, stepwise credit first."""
    group_size: int

    @property
    def groups(self) -> list[range]:
        """The rows of each group."""
        return [range(start, start + self.group_size) for start in range(0, len(self.gains), self.group_size)]


def compare(server: ComfyServer, file: Path) -> Compared:
    """One press of stepwise_against_uniform while no trainer runs, so that the experience still lies in the inbox."""
    graph = graph_of(server, file)
    graph = {id: node for id, node in graph.items() if id not in nodes_of(graph, "HeldOutPictures")}
    previews = show(graph, nodes_of(graph, "TweediePreviewReward")[0], 1)
    shown = pictures_of(server, server.run(graph), previews)
    runs = [graph[trainer]["inputs"]["run_name"] for trainer in nodes_of(graph, "GRPOLoRATrainer")]
    waiting = {run: unpack(RunFolder(server.output, run).waiting()[0]) for run in runs}
    advantages = {run: experience.advantages.T.tolist() for run, experience in waiting.items()}
    for run in runs:
        for path in RunFolder(server.output, run).waiting():
            path.unlink()  # the trainer has better things to do
    stepwise = waiting[runs[0]]
    states, rows = stepwise.rewards.shape
    films = [[shown[k * rows + i] for k in range(states)] for i in range(rows)]
    return Compared(films, stepwise.rewards.diff(dim=0).T.tolist(), advantages, stepwise.group_size)


@dataclass
class Learnt:
    """A run of the first loop."""

    before: list[Picture] = field(default_factory=list)
    """Held-out pictures of the base model."""
    after: list[Picture] = field(default_factory=list)
    """Held-out pictures of the newest version."""
    scores: list[tuple[float, float]] = field(default_factory=list)
    """(before, after) reward of each."""
    rewards: list[float] = field(default_factory=list)
    """Mean reward of each iteration."""


def learn(server: ComfyServer, file: Path, iterations: int) -> Learnt:
    """Press Run ``iterations`` times and look at held-out pictures before and after; at more of them than the workflow has, to choose from."""
    graph, learnt = graph_of(server, file), Learnt()
    (look,), (sampler,), (prompts, held_out) = (nodes_of(graph, name) for name in ("HeldOutPictures", "StepwiseSDESampler", "PromptList"))
    lines = list(dict.fromkeys(text for text, _ in local.held_out()))[:40]
    graph[held_out]["inputs"] |= {"prompts": "\n".join(lines), "prompts_per_iteration": len(lines)}
    shown, run = show(graph, look, 0), RunFolder(server.output, graph[nodes_of(graph, "GRPOLoRATrainer")[0]]["inputs"]["run_name"])
    looking, training = without(graph, "StepwiseSDESampler"), without(graph_of(server, file), "CreditVisualizer")
    learnt.before = pictures_of(server, server.run(looking), shown)
    before = read_json(run.look_file(0))["rewards"]  # training looks at version 0 too, with fewer prompts
    for i in range(iterations):
        training[prompts]["inputs"]["iteration"] = training[sampler]["inputs"]["seed"] = i
        server.run(training)
    learnt.after = pictures_of(server, server.run(looking), shown)
    learnt.rewards = [event["reward_mean"] for event in run.events()]
    learnt.scores = list(zip(before, read_json(run.look_file(run.latest()["version"]))["rewards"]))
    return learnt


def without(graph: Graph, *names: str) -> Graph:
    """The graph without these nodes and all that hangs on them."""
    gone = {id for name in names for id in nodes_of(graph, name)}
    while more := {id for id, node in graph.items() if id not in gone and any(isinstance(v, list) and v[0] in gone for v in node["inputs"].values())}:
        gone |= more
    return {id: {**node, "inputs": dict(node["inputs"])} for id, node in graph.items() if id not in gone}
