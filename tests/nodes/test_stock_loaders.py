"""Base models behind stock loaders, and LoRAs below the trained one, on a real server with a real trainer."""

import json

import pytest

from stepwise_grpo.tests.nodes.graphs import FLOW, add, change, find, first_loop, insert, version_by_hand
from stepwise_grpo.tools.server import ComfyError
from stepwise_grpo.training.base import describe, describe_lora
from stepwise_grpo.training.job import RunFolder

LIVE, SAMPLER, PREVIEW, TRAINER = (f"StepwiseGRPO_{name}" for name in ("LiveLoRA", "StepwiseSDESampler", "TweediePreviewReward", "GRPOLoRATrainer"))
EXACT = 1e-4  # graph against trainer, relative


@pytest.fixture(scope="module")
def style(server):
    """The name of a LoRA that changes the demo's model clearly."""
    return version_by_hand(server.output, "a style", size=0.1).lora_name(1)


def behind_stock_loader(server, run, seed=0, loader="UNETLoader", **widgets):
    """The workflow on the demo's model file, opened by a stock loader, with a ModelSampling node behind it."""
    graph = first_loop(server, run, seed)
    widgets = widgets or {"unet_name": "demo_flow.safetensors", "weight_dtype": "default"}
    change(graph, LIVE, model=[add(graph, loader, **widgets), 0])
    return insert(graph, LIVE, "model", "ModelSamplingSD3", "model", shift=2.0)


def train(server, graph):
    """Queue the graph; the update's metrics and the base that the run was started with."""
    show = add(graph, "PreviewAny", source=[find(graph, TRAINER), 2])
    run = RunFolder(server.output, graph[find(graph, TRAINER)]["inputs"]["run_name"])
    return json.loads(server.run(graph)[show]["text"][0]), run.job()["base"]


def put_lora(graph, name, strength, consumer=LIVE):
    return insert(graph, consumer, "model", "LoraLoaderModelOnly", "model", lora_name=name, strength_model=strength)


@pytest.mark.usefixtures("busy_trainer")
class TestTrains:
    def test_a_stock_loader_with_shift_and_a_lora_below_the_trained_one(self, server, style):
        file, lora = describe("diffusion_models", "demo_flow.safetensors", FLOW), RunFolder(server.output, "a style").version_file(1)
        for seed in range(2):
            event, base = train(server, put_lora(behind_stock_loader(server, "on a style", seed), style, 0.7))
            assert base == {**file, "loras": [describe_lora(style, lora, 0.7)]}
            assert event["version"] == seed + 1 and event["graph_velocity_error"] < EXACT and event["ratio_error_max"] == 0
            assert event["keys_matched"] == event["keys_total"] > 0

    def test_a_graph_that_adds_a_lora_to_a_running_run_is_told_so(self, server, style):
        _, base = train(server, behind_stock_loader(server, "without a style"))
        assert "loras" not in base
        with pytest.raises(ComfyError, match=r"was started with other LoRAs on the base model: none; this graph has '.*v000001.safetensors' at 0.7"):
            server.run(put_lora(behind_stock_loader(server, "without a style", 1), style, 0.7))

    def test_a_lora_behind_live_lora_and_one_of_strength_0(self, server, style):
        graph = put_lora(put_lora(behind_stock_loader(server, "behind"), style, 0.0), style, 0.5, SAMPLER)
        change(graph, PREVIEW, model=graph[find(graph, SAMPLER)]["inputs"]["model"])
        event, base = train(server, graph)
        assert [(lora["name"], lora["strength"]) for lora in base["loras"]] == [(style, 0.5)]
        assert event["graph_velocity_error"] < EXACT

    def test_the_demo_model_with_a_lora_of_the_loader_that_also_changes_the_text(self, server, style):
        graph = first_loop(server, "demo in a style")
        demo = find(graph, "StepwiseGRPO_DemoModel")
        both = add(graph, "LoraLoader", model=[demo, 0], clip=[demo, 1], lora_name=style, strength_model=1.0, strength_clip=0.0)
        change(graph, LIVE, model=[both, 0])
        event, base = train(server, graph)
        assert base["kind"] == "demo" and base["loras"][0]["name"] == style and event["graph_velocity_error"] < EXACT

    def test_a_checkpoint_by_its_stock_loader(self, server):
        event, base = train(server, behind_stock_loader(server, "checkpoint", loader="CheckpointLoaderSimple", ckpt_name="whole.safetensors"))
        assert (base["kind"], base["name"]) == ("checkpoints", "whole.safetensors") and event["graph_velocity_error"] < EXACT

    @pytest.mark.parametrize("ours", [True, False], ids=["Base Model", "Load Diffusion Model"])
    def test_the_trainer_loads_the_precision_of_the_graph(self, server, ours):
        loader = {"loader": "StepwiseGRPO_BaseModel", "model_name": "demo_flow.safetensors"} if ours else {"unet_name": "demo_flow.safetensors"}
        event, base = train(server, behind_stock_loader(server, f"fp8 {ours}", weight_dtype="fp8_e4m3fn", **loader))
        assert base["weight_dtype"] == "fp8_e4m3fn" and event["graph_velocity_error"] < EXACT
        with pytest.raises(ComfyError, match="was started with weight_dtype = fp8_e4m3fn; this graph says default"):
            server.run(behind_stock_loader(server, f"fp8 {ours}", 1, weight_dtype="default", **loader))
