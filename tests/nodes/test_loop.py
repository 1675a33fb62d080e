"""The shipped workflow on a real server with a real trainer, made small: the loop closes."""

import json
import time

import pytest
import safetensors.torch

from stepwise_grpo.tests.nodes.graphs import add, change, find, first_loop, note
from stepwise_grpo.tests.nodes.live import watch
from stepwise_grpo.tools.server import ComfyError
from stepwise_grpo.training.job import RunFolder, write_json

pytestmark = pytest.mark.usefixtures("busy_trainer")


def metrics(server, graph):
    """Queue the graph with a node that shows the trainer's metrics; (outputs, metrics)."""
    show = add(graph, "PreviewAny", source=[find(graph, "StepwiseGRPO_GRPOLoRATrainer"), 2])
    outputs = server.run(graph)
    return outputs, json.loads(outputs[show]["text"][0])


@pytest.fixture(scope="module")
def three_iterations(server, busy_trainer):
    """Queue the workflow three times, as an artist would; the update's metrics of each."""
    seen = []
    for seed in range(3):
        graph = first_loop(server, "loop", seed)
        outputs, event = metrics(server, graph)
        seen.append(event)
        assert note(outputs, graph).startswith(f"loop version {seed + 1}: reward ")
        (view,) = outputs[find(graph, "StepwiseGRPO_CreditVisualizer")]["stepwise_grpo_credit"]
        assert (server.output / "stepwise_grpo" / ".credit" / view / "view.json").is_file()
        assert len(outputs[find(graph, "PreviewImage")]["images"]) == 4
    return seen


def test_every_queue_makes_a_version_from_the_one_before(three_iterations):
    assert [event["version"] for event in three_iterations] == [1, 2, 3]
    assert [event["behaviour_version"] for event in three_iterations] == [0, 1, 2]


def test_graph_and_trainer_compute_the_same_velocity(three_iterations):
    for event in three_iterations:
        assert event["graph_velocity_error"] < 1e-4
        assert event["ratio_error_max"] == 0
        assert event["keys_matched"] == event["keys_total"] > 0


def test_the_experience_tells_what_it_cost(three_iterations):
    for event in three_iterations:
        assert event["evaluations"] == 2 + 2 * 4  # the shared first step, then two steps of four pictures; T' = 1 is free
        assert set(event["rollout_seconds"]) == {"rollout", "preview", "decode", "reward"}


def test_the_stock_loader_lists_and_loads_every_version(server, three_iterations):
    folder = RunFolder(server.output, "loop")
    graph = {
        "demo": {"class_type": "StepwiseGRPO_DemoModel", "inputs": {}},
        "text": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["demo", 1], "text": "a big red circle at the top"}},
        "empty": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 128, "height": 128, "batch_size": 1}},
        "lora": {"class_type": "LoraLoaderModelOnly", "inputs": {"model": ["demo", 0], "lora_name": folder.lora_name(3), "strength_model": 1.0}},
        "sample": {
            "class_type": "KSampler",
            "inputs": {"model": ["lora", 0], "positive": ["text", 0], "negative": ["text", 0], "latent_image": ["empty", 0], "seed": 1, "steps": 3, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0},
        },
        "decode": {"class_type": "VAEDecode", "inputs": {"samples": ["sample", 0], "vae": ["demo", 2]}},
        "show": {"class_type": "PreviewImage", "inputs": {"images": ["decode", 0]}},
    }
    start = server.log.stat().st_size
    assert server.run(graph)["show"]["images"]
    assert b"not loaded" not in server.log.read_bytes()[start:].lower()


def test_the_same_graph_again_is_served_from_the_cache_and_trains_nothing(server):
    graph = first_loop(server, "again")
    server.run(graph)
    change(graph, "StepwiseGRPO_LiveLoRA", version=0)  # from now on nothing in the graph moves
    for _ in range(2):
        server.run(graph)
    assert RunFolder(server.output, "again").latest()["version"] == 2


def test_a_linked_run_name_still_follows_the_newest_version(server):
    for version in (1, 2):
        graph = first_loop(server, "linked", seed=version)
        name = add(graph, "PrimitiveString", value="linked")
        change(graph, "StepwiseGRPO_LiveLoRA", run_name=[name, 0])
        _, event = metrics(server, graph)
        assert (event["version"], event["behaviour_version"]) == (version, version - 1)


def test_an_older_version_can_be_looked_at_without_training(server, three_iterations):
    graph = first_loop(server, "loop", 9)
    change(graph, "StepwiseGRPO_LiveLoRA", version=1)
    show = add(graph, "PreviewAny", source=[find(graph, "StepwiseGRPO_LiveLoRA"), 2])
    del graph[find(graph, "StepwiseGRPO_GRPOLoRATrainer")]
    assert server.run(graph)[show]["text"] == ["loop version 1"]


def test_a_model_file_trains_like_the_built_in_model(server):
    graph = first_loop(server, "from file")
    base = add(graph, "StepwiseGRPO_BaseModel", model_name="demo_flow.safetensors", weight_dtype="default")
    change(graph, "StepwiseGRPO_LiveLoRA", model=[base, 0])
    _, event = metrics(server, graph)
    assert event["version"] == 1 and event["graph_velocity_error"] < 1e-4
    assert RunFolder(server.output, "from file").job()["base"]["name"] == "demo_flow.safetensors"


def test_one_untagged_prompt_works_too(server):
    graph = first_loop(server, "one prompt")
    change(graph, "StepwiseGRPO_StepwiseSDESampler", positive=[add(graph, "CLIPTextEncode", clip=[find(graph, "StepwiseGRPO_DemoModel"), 1], text="a big red circle at the top"), 0])
    reward = add(graph, "StepwiseGRPO_WarmthReward", toward="cool")
    change(graph, "StepwiseGRPO_TweediePreviewReward", reward=[reward, 0], substeps=2)
    outputs, event = metrics(server, graph)
    assert event["pictures"] == 2 and len(outputs[find(graph, "PreviewImage")]["images"]) == 2


@pytest.mark.parametrize("scheme, law", [("uniform", "flow"), ("paper", "cps"), ("to_go", "dance"), ("per_step", "precise")])
def test_schemes_and_laws_go_through(server, scheme, law):
    graph = first_loop(server, f"{scheme} {law}")
    change(graph, "StepwiseGRPO_TweediePreviewReward", credit_scheme=scheme)
    change(graph, "StepwiseGRPO_StepwiseSDESampler", law=law, eta=-1.0, cfg=2.0)
    _, event = metrics(server, graph)
    assert (event["credit"], event["law"], event["version"]) == (scheme, law, 1)


def test_averaged_weights_can_be_looked_at_but_not_trained(server):
    graph = first_loop(server, "averaged")
    change(graph, "StepwiseGRPO_GRPOLoRATrainer", ema=0.9)
    server.run(graph)
    graph = change(first_loop(server, "averaged", 1), "StepwiseGRPO_LiveLoRA", use_ema=True)
    with pytest.raises(ComfyError, match="use_ema is on in Live LoRA"):
        server.run(graph)


def test_without_waiting_the_graph_goes_on_at_once(server, three_iterations):
    graph = change(first_loop(server, "no wait"), "StepwiseGRPO_GRPOLoRATrainer", wait=False)
    assert note(server.run(graph), graph) == "Queued for the trainer (1 waiting)."
    deadline = time.monotonic() + 60
    while RunFolder(server.output, "no wait").latest() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert RunFolder(server.output, "no wait").latest()["version"] == 1


def test_other_settings_of_a_running_run_are_refused_by_name(server, three_iterations):
    graph = change(first_loop(server, "loop", 20), "StepwiseGRPO_GRPOLoRATrainer", rank=8)
    with pytest.raises(ComfyError, match="started with rank = 16; this graph says 8"):
        server.run(graph)


def test_the_trainer_node_shows_how_far_the_trainer_is(server, three_iterations):
    graph = change(first_loop(server, "shown"), "StepwiseGRPO_StepwiseSDESampler", group_size=16)
    change(graph, "StepwiseGRPO_GRPOLoRATrainer", updates=8)  # long enough to be seen
    seen = watch(server, graph).of(find(graph, "StepwiseGRPO_GRPOLoRATrainer"))
    steps = [value for _, value, _ in seen.bars]
    assert steps == sorted(steps) and seen.bars[-1][1:] == (3, 3) and 2 in steps
    assert seen.texts[-1][1].startswith("shown version 1: reward ")
    assert any(text.startswith("training version 1 (") for _, text in seen.texts)


def test_cancelling_a_rollout_stops_it_and_the_server_lives(server):
    graph = change(first_loop(server, "cancelled", 30), "BasicScheduler", steps=500)
    change(graph, "StepwiseGRPO_StepwiseSDESampler", rows_per_call=2)
    prompt_id = server.queue(graph)
    deadline = time.monotonic() + 60
    while not server.get("/queue")["queue_running"] and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    server.post("/interrupt", {})
    with pytest.raises(ComfyError, match="cancelled"):
        server.wait(prompt_id, 60)
    assert server.get("/system_stats")


def test_an_iteration_of_a_paused_run_is_queued_and_holds_nobody_up_until_it_is_resumed(server):
    folder = RunFolder(server.output, "paused")
    write_json(folder.path / "job.json", {"base": {"kind": "demo"}})  # not agreed on yet: the first iteration sets it
    server.post("/stepwise_grpo/runs/paused/pause", {})
    outputs = server.run(first_loop(server, "paused"))
    assert "press Resume" in str(outputs)
    time.sleep(1)
    assert folder.latest() is None and server.get("/stepwise_grpo/runs/paused")["summary"]["phase"] == "paused"
    assert len(folder.waiting()) == 1
    server.post("/stepwise_grpo/runs/paused/resume", {})
    until(lambda: folder.latest() is not None and not folder.waiting())
    assert folder.latest()["version"] == 1


def test_going_back_from_the_page_and_on_in_the_graph(server):
    for seed in range(3):
        server.run(first_loop(server, "back", seed))
    folder = RunFolder(server.output, "back")
    answer = server.post("/stepwise_grpo/runs/back/go_back", {"version": 1})
    assert answer["summary"]["going_back_to"] in (1, None)
    until(lambda: folder.latest()["version"] == 4)
    outputs, event = metrics(server, first_loop(server, "back", 9))
    assert (event["version"], event["behaviour_version"], event["ratio_error_max"]) == (5, 4, 0) and event["graph_velocity_error"] < 1e-4
    full = server.get("/stepwise_grpo/runs/back")
    assert [entry["back_to"] for entry in full["versions"]] == [None, None, None, 1, None] and full["summary"]["going_back_to"] is None
    assert len(full["events"][4]["gain_by_step"]) == 3 and all(gain >= 0 for gain in full["events"][4]["gain_by_step"])
    one, four = (safetensors.torch.load_file(folder.version_file(version)) for version in (1, 4))
    assert all(one[name].equal(four[name]) for name in one)


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
