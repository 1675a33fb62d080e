"""Live LoRA's ways on a real server with a real trainer: beside the weights, and from a LoRA that the artist has."""

import re

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.nodes.graphs import FLOW, add, change, find, first_loop, version_by_hand
from stepwise_grpo.tests.nodes.test_loop import metrics
from stepwise_grpo.tools.server import ComfyError
from stepwise_grpo.training.job import RunFolder

pytestmark = pytest.mark.usefixtures("busy_trainer")
LIVE, TRAINER = "StepwiseGRPO_LiveLoRA", "StepwiseGRPO_GRPOLoRATrainer"


def said(server, graph) -> tuple[str, dict]:
    """Live LoRA's note and the trainer's metrics."""
    show = add(graph, "PreviewAny", source=[find(graph, LIVE), 2])
    outputs, event = metrics(server, graph)
    return outputs[show]["text"][0], event


def iterations(server, run: str, count: int, prepare=lambda graph: None, **live) -> list[tuple[str, dict]]:
    seen = []
    for seed in range(count):
        graph = change(first_loop(server, run, seed), LIVE, **live)
        prepare(graph)
        seen.append(said(server, graph))
    return seen


def test_beside_the_weights_graph_and_trainer_compute_the_same(server):
    seen = iterations(server, "beside", 3, apply_as="unmerged")
    assert [note for note, _ in seen] == ["run 'beside' has no version yet: the model without LoRA", "beside version 1, unmerged", "beside version 2, unmerged"]
    assert [event["behaviour_version"] for _, event in seen] == [0, 1, 2]
    assert all(event["graph_velocity_error"] < 1e-4 for _, event in seen)


@pytest.fixture
def fp8_file(server) -> str:
    """The demo model in fp8, with a scale for each linear layer, among the server's diffusion models."""
    tensors = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    for name, w in safetensors.torch.load_file(FLOW).items():
        if w.dim() == 2 and name.endswith(".weight") and "pos_embed" not in name:
            scale = w.float().abs().max() / 448
            tensors[name.replace(".weight", ".scale_weight")], w = scale, (w.float() / scale).to(torch.float8_e4m3fn)
        tensors[name] = w
    safetensors.torch.save_file(tensors, server.log.parent / "models" / "demo_fp8.safetensors")
    return "demo_fp8.safetensors"


def test_auto_is_exact_on_a_model_in_fp8(server, fp8_file):
    def on_fp8(graph):
        base = add(graph, "StepwiseGRPO_BaseModel", model_name=fp8_file, weight_dtype="default")
        change(graph, LIVE, model=[base, 0])
        change(graph, TRAINER, learning_rate=0.01)  # one version with an effect that can be seen

    beside, merged = iterations(server, "fp8 auto", 2, on_fp8, apply_as="auto"), iterations(server, "fp8 merged", 2, on_fp8, apply_as="merged")
    assert beside[1][0] == "fp8 auto version 1, unmerged" and merged[1][0] == "fp8 merged version 1"
    assert beside[1][1]["graph_velocity_error"] < 1e-4
    assert beside[1][1]["graph_velocity_error"] <= merged[1][1]["graph_velocity_error"]  # how far merging is off: test_unmerged.py


def test_a_run_starts_from_a_lora_and_keeps_it(server):
    style = version_by_hand(server.output, "a teacher", size=0.3).lora_name(1)
    seen = iterations(server, "continued", 2, start_from=style)
    assert [note for note, _ in seen] == [f"run 'continued' has no version yet: it starts from {style}", "continued version 1"]
    assert [event["behaviour_version"] for _, event in seen] == [0, 1]
    assert all(event["graph_velocity_error"] < 1e-4 and event["ratio_error_max"] == 0 for _, event in seen)
    start = RunFolder(server.output, "continued").job()["start"]
    assert start["name"] == style and start["size"] > 0 and len(start["sha256"]) == 64
    with pytest.raises(ComfyError, match=re.escape("was started with start_from (in Live LoRA) = ") + ".*this graph says none"):
        server.run(first_loop(server, "continued", 9))


def test_version_0_of_such_a_run_is_that_lora_beside_the_weights_too(server):
    style = version_by_hand(server.output, "a teacher", size=0.3).lora_name(1)
    ((note, event),) = iterations(server, "continued beside", 1, start_from=style, apply_as="unmerged", version=0)
    assert note.endswith(f"it starts from {style}, unmerged") and event["graph_velocity_error"] < 1e-4


def test_a_pattern_that_meets_no_layer_is_told_at_the_node(server):
    graph = change(first_loop(server, "pattern"), TRAINER, target_pattern="no such layer")
    with pytest.raises(ComfyError, match="refused this iteration: target_pattern 'no such layer' matches no layer of this model.*such as "):
        server.run(graph)
    _, event = metrics(server, change(first_loop(server, "pattern"), TRAINER, target_pattern=r"joint_blocks\.0\..*qkv"))  # the name is still free
    assert event["keys_matched"] == event["keys_total"] > 0
