"""What the graph tells about the model behind a sampler, on prompts as the server has them."""

from dataclasses import astuple

import pytest

pytestmark = pytest.mark.usefixtures("comfy")  # for nodes/__init__.py; the file itself needs no ComfyUI
FLUX = ("UNETLoader", {"unet_name": "flux.safetensors", "weight_dtype": "fp8_e5m2"})


def read_chain(prompt, id):
    from stepwise_grpo.nodes import graph_reading

    return graph_reading.read_chain(prompt, id)


def chain_of(*nodes, titles=None, ids=None):
    """A prompt: a loader, nodes in a row behind it, and a sampler "s" at the end. A node is (class, widgets)."""
    ids = ids or [str(i) for i in range(len(nodes))]
    prompt = {}
    for i, (id, (kind, widgets)) in enumerate(zip(ids, nodes)):
        prompt[id] = {"class_type": kind, "inputs": {**widgets, **({"model": [ids[i - 1], 0]} if i else {})}}
        if titles and id in titles:
            prompt[id]["_meta"] = {"title": titles[id]}
    prompt["s"] = {"class_type": "StepwiseGRPO_StepwiseSDESampler", "inputs": {"model": [ids[-1], 0], "seed": 3}}
    return prompt


def lora(name, strength, **more):
    return ("LoraLoaderModelOnly", {"lora_name": name, "strength_model": strength, **more})


@pytest.mark.parametrize(
    "loader, expected",
    [
        (FLUX, ("diffusion_models", "flux.safetensors", "fp8_e5m2", ())),
        (("CheckpointLoaderSimple", {"ckpt_name": "a/sd3.safetensors"}), ("checkpoints", "a/sd3.safetensors", "default", ())),
        (("ImageOnlyCheckpointLoader", {"ckpt_name": "v.safetensors"}), ("checkpoints", "v.safetensors", "default", ())),
        (("StepwiseGRPO_BaseModel", {"model_name": ["9", 0], "weight_dtype": "default"}), ("", "", "default", ())),
        (("StepwiseGRPO_DemoModel", {}), ("", "", "default", ())),
    ],
    ids=lambda value: str(value[0]),
)
def test_loaders(loader, expected):
    assert astuple(read_chain(chain_of(loader), "s")) == expected


def test_loras_in_the_order_in_which_they_are_applied_without_those_of_strength_0():
    both = ("LoraLoader", {"lora_name": "b", "strength_model": -0.5, "strength_clip": ["7", 0], "clip": ["0", 1]})
    prompt = chain_of(FLUX, lora("a", 1), ("ModelSamplingFlux", {"max_shift": ["7", 0]}), both, lora(["7", 0], 0.0), ("StepwiseGRPO_LiveLoRA", {}), lora("a", 2))
    assert read_chain(prompt, "s").loras == (("a", 1.0), ("b", -0.5), ("a", 2.0))


@pytest.mark.parametrize("kind", ["ModelSamplingSD3", "ModelSamplingAuraFlow", "ModelSamplingFlux", "ModelSamplingLTXV", "StepwiseGRPO_LiveLoRA"])
def test_nodes_that_leave_the_weights_alone_are_seen_through_whatever_is_linked_to_them(kind):
    assert read_chain(chain_of(FLUX, (kind, {"shift": ["7", 0]})), "s").name == "flux.safetensors"


def test_ids_of_subgraphs():
    prompt = chain_of(FLUX, lora("a", 1), ("ModelSamplingSD3", {}), ids=["12:3", "12:14:2", "5"])
    assert read_chain(prompt, "s").loras == (("a", 1.0),)


@pytest.mark.parametrize(
    "titles, called",
    [({"12:4": "My tweak"}, r"'My tweak' \(PatchModelAddDownscale, node 12:4\)"), (None, r"PatchModelAddDownscale \(node 12:4\)")],
)
def test_a_node_it_cannot_see_through_is_named_with_the_remedy(titles, called):
    prompt = chain_of(FLUX, ("PatchModelAddDownscale", {}), ids=["1", "12:4"], titles=titles)
    with pytest.raises(ValueError, match=f"cannot see through {called}: it may change .*load with Base Model, Load Diffusion Model or Load Checkpoint"):
        read_chain(prompt, "s")


def test_a_loader_it_does_not_know_is_named():
    with pytest.raises(ValueError, match=r"cannot see through NunchakuFluxDiTLoader \(node 0\)"):
        read_chain(chain_of(("NunchakuFluxDiTLoader", {})), "s")


@pytest.mark.parametrize("kind", ["UnetLoaderGGUF", "UnetLoaderGGUFAdvanced"])
def test_a_gguf_loader_is_refused_with_what_to_take_instead(kind):
    with pytest.raises(ValueError, match=rf"{kind} \(node 0\) loads a GGUF file.*take the model's .safetensors file with Load Diffusion Model"):
        read_chain(chain_of((kind, {"unet_name": "flux.gguf"})), "s")


@pytest.mark.parametrize(
    "nodes, says",
    [
        ([("UNETLoader", {"unet_name": ["7", 0], "weight_dtype": "default"})], r"unet_name of UNETLoader \(node 0\)"),
        ([("UNETLoader", {"unet_name": "f", "weight_dtype": ["7", 0]})], r"weight_dtype of UNETLoader \(node 0\)"),
        ([("CheckpointLoaderSimple", {"ckpt_name": ["7", 0]})], r"ckpt_name of CheckpointLoaderSimple \(node 0\)"),
        ([FLUX, lora(["7", 0], 1)], r"lora_name of LoraLoaderModelOnly \(node 1\)"),
        ([FLUX, lora("a", ["7", 1])], r"strength_model of LoraLoaderModelOnly \(node 1\)"),
    ],
)
def test_a_widget_that_another_node_fills_is_named(nodes, says):
    with pytest.raises(ValueError, match=says + " comes from another node, so the trainer cannot know it; choose it in the widget"):
        read_chain(chain_of(*nodes), "s")


@pytest.mark.parametrize("prompt", [None, {}, {"s": {"class_type": "S", "inputs": {}}}, {"s": {"class_type": "S", "inputs": {"model": ["gone", 0]}}}])
def test_a_node_that_the_queued_graph_does_not_hold_is_said(prompt):
    with pytest.raises(ValueError, match="cannot see where the model of .* comes from: the graph as it was queued does not say so"):
        read_chain(prompt, "s")
