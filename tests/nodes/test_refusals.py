"""Bad input at the nodes: one clear sentence at the right place, and ComfyUI lives. No trainer runs here."""

import re

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.nodes.graphs import FLOW, add, change, find, first_loop, insert, note, version_by_hand
from stepwise_grpo.tools.server import ComfyError
from stepwise_grpo.training.job import write_whole

SAMPLER, TRAINER, LIVE, PREVIEW, PROMPTS = (
    f"StepwiseGRPO_{name}" for name in ("StepwiseSDESampler", "GRPOLoRATrainer", "LiveLoRA", "TweediePreviewReward", "PromptList")
)


def refused(server, graph, says: str) -> None:
    """The server answers with ``says`` in one sentence, and goes on."""
    with pytest.raises(ComfyError, match=re.escape(says)) as caught:
        answer = server.post("/prompt", {"prompt": graph})
        server.wait(answer["prompt_id"])
        # ComfyUI runs the outputs that are in order and tells what is wrong with the others beside it.
        raise ComfyError("; ".join(error["details"] for node in answer["node_errors"].values() for error in node["errors"]))
    assert len(str(caught.value).splitlines()[0]) < 420
    assert server.get("/system_stats")


def bad_widget(kind, **inputs):
    return lambda server, graph: change(graph, kind, **inputs)


def not_flow_matching(server, graph):
    insert(graph, LIVE, "model", "ModelSamplingDiscrete", "model", sampling="eps", zsnr=False)


def guided_by_a_function(server, graph):
    insert(graph, LIVE, "model", "RescaleCFG", "model", multiplier=0.7)


def lora_on_the_sampler_alone(server, graph):
    name = version_by_hand(server.output, "a style").lora_name(1)
    insert(graph, SAMPLER, "model", "LoraLoaderModelOnly", "model", lora_name=name, strength_model=1.0)


def lora(server, graph, tensors, **widgets):
    """A LoRA file of these layers of the demo model, or of another one, below Live LoRA."""
    path = server.output / "loras" / f"{len(list((server.output / 'loras').glob('*')))}.safetensors"
    write_whole(path, safetensors.torch.save(tensors))
    insert(graph, LIVE, "model", "LoraLoaderModelOnly", "model", **{"lora_name": path.name, "strength_model": 1.0, **widgets})


def layers(*names):
    """Of the size of the demo model's attention."""
    ((rows, columns),) = {w.shape for name, w in safetensors.torch.load_file(FLOW).items() if name.endswith("attn.qkv.weight")}
    return {f"diffusion_model.{name}.lora_{x}.weight": torch.zeros(*shape) for name in names for x, shape in (("A", (2, columns)), ("B", (rows, 2)))}


def start_with_nan(server, graph):
    folder = version_by_hand(server.output, "a broken style", 1)
    tensors = safetensors.torch.load_file(folder.version_file(1))
    next(tensor for name, tensor in tensors.items() if name.endswith("lora_B.weight"))[1, 2] = torch.nan
    write_whole(folder.version_file(1), safetensors.torch.save(tensors))
    change(graph, LIVE, start_from=folder.lora_name(1), version=0)


def lora_of_another_model(server, graph):
    lora(server, graph, layers("transformer_blocks.0.attn.to_q"))


def lora_of_a_larger_model(server, graph):
    lora(server, graph, layers("joint_blocks.0.x_block.attn.qkv", "joint_blocks.30.x_block.attn.qkv"))


def lora_with_a_linked_strength(server, graph):
    lora(server, graph, layers("joint_blocks.0.x_block.attn.qkv"), strength_model=[add(graph, "PrimitiveFloat", value=0.5), 0])


def merged(server, graph):
    other = add(graph, "UNETLoader", unet_name="other_flow.safetensors", weight_dtype="default")
    insert(graph, LIVE, "model", "ModelMergeSimple", "model1", model2=[other, 0], ratio=0.5)


def unknown_node_behind_a_stock_loader(server, graph):
    change(graph, LIVE, model=[add(graph, "UNETLoader", unet_name="demo_flow.safetensors", weight_dtype="default"), 0])
    insert(graph, LIVE, "model", "wanBlockSwap", "model")
    graph[find(graph, "wanBlockSwap")]["_meta"] = {"title": "Swap blocks"}


def other_times(server, graph):
    insert(graph, LIVE, "model", "ModelSamplingAuraFlow", "model", shift=1.7)


def spoilt_file(name):
    return lambda server, graph: change(graph, LIVE, model=[add(graph, "StepwiseGRPO_BaseModel", model_name=f"{name}.safetensors", weight_dtype="default"), 0])


def area(server, graph):
    insert(graph, SAMPLER, "positive", "ConditioningSetArea", "conditioning", width=64, height=64, x=0, y=0, strength=1.0)


def mask(server, graph):
    solid = add(graph, "SolidMask", value=1.0, width=16, height=16)
    insert(graph, SAMPLER, "positive", "ConditioningSetMask", "conditioning", mask=[solid, 0], strength=1.0, set_cond_area="default")


def time_range(server, graph):
    insert(graph, SAMPLER, "negative", "ConditioningSetTimestepRange", "conditioning", start=0.2, end=1.0)


def picture_in_latent(server, graph):
    pixels = add(graph, "EmptyImage", width=128, height=128, batch_size=1, color=255)
    demo = find(graph, "StepwiseGRPO_DemoModel")
    change(graph, SAMPLER, latent_image=[add(graph, "VAEEncode", pixels=[pixels, 0], vae=[demo, 2]), 0])


def noise_mask(server, graph):
    solid = add(graph, "SolidMask", value=1.0, width=16, height=16)
    insert(graph, SAMPLER, "latent_image", "SetLatentNoiseMask", "samples", mask=[solid, 0])


def two_live_loras(server, graph):
    insert(graph, SAMPLER, "model", LIVE, "model", run_name="refused", version=-1, strength=1.0, use_ema=False)
    change_previews_model(graph)


def change_previews_model(graph):
    change(graph, PREVIEW, model=graph[find(graph, SAMPLER)]["inputs"]["model"])


def run_without_live_lora(server, graph):
    version_by_hand(server.output, "refused")
    demo = [find(graph, "StepwiseGRPO_DemoModel"), 0]
    change(graph, SAMPLER, model=demo)
    change(graph, PREVIEW, model=demo)


def preview_with_another_model(server, graph):
    change(graph, PREVIEW, model=[find(graph, "StepwiseGRPO_DemoModel"), 0])


def missing_version(server, graph):
    version_by_hand(server.output, "refused")
    change(graph, LIVE, version=7)


def old_version(server, graph):
    for version in range(1, 5):
        version_by_hand(server.output, "went on", version)
    change(graph, LIVE, run_name="went on", version=1)
    change(graph, TRAINER, run_name="went on")


def missing_average(server, graph):
    version_by_hand(server.output, "refused").version_file(1, ema=True).unlink(missing_ok=True)  # another test may have left one
    change(graph, LIVE, use_ema=True)


def start_of_another_model(server, graph):
    folder = version_by_hand(server.output, "another model")
    tensors = safetensors.torch.load_file(folder.version_file(1))
    spoilt = {name.replace("joint_blocks", "other_blocks"): w for name, w in tensors.items()}
    safetensors.torch.save_file(spoilt, folder.version_file(2))
    change(graph, LIVE, start_from=folder.lora_name(2), version=0)


CASES = {
    "group size 1": (bad_widget(SAMPLER, group_size=1), "smaller than min of 2: group_size"),
    "one step": (bad_widget("BasicScheduler", steps=1), "a rollout needs at least 2 steps; the sigmas give 1"),
    "zero steps": (bad_widget("BasicScheduler", denoise=0.0), "a rollout needs at least 2 steps; the sigmas give 0"),
    "half a schedule": (bad_widget("BasicScheduler", denoise=0.5), "the sigmas must start at 1"),
    "eta too big": (bad_widget(SAMPLER, law="cps", eta=1.5), "eta of the law 'cps' must lie between 0 and 1"),
    "eta below 0": (bad_widget(SAMPLER, law="ddim", eta=-0.5), "eta of the law 'ddim' must lie between 0 and 1"),
    "no noise": (bad_widget(SAMPLER, eta=0.0), "raise eta above 0"),
    "empty prompts": (bad_widget(PROMPTS, prompts=""), "the prompt list is empty: write one prompt a line"),
    "blank prompts": (bad_widget(PROMPTS, prompts="  \n\t\n# only a remark\n"), "the prompt list is empty"),
    "run name upwards": (bad_widget(TRAINER, run_name="../up"), "run name '../up' is not usable"),
    "run name with slash": (bad_widget(TRAINER, run_name="a/b"), "run name 'a/b' is not usable"),
    "long run name": (bad_widget(TRAINER, run_name="x" * 300), "is not usable: take 1 to 64"),
    "run name in Live LoRA": (bad_widget(LIVE, run_name="..\\up"), "is not usable"),
    "not a flow model": (not_flow_matching, "this model is not flow matching"),
    "guidance by a function": (guided_by_a_function, "the model carries sampler_cfg_function, which the trainer cannot repeat"),
    "a LoRA on the sampler alone": (lora_on_the_sampler_alone, "connect the same MODEL"),
    "LoRA of another model": (lora_of_another_model, "does not fit this model (SD3): none of its layers exist there"),
    "LoRA of a larger model": (lora_of_a_larger_model, "fits this model (SD3) only in 1 of 2 layers, not in diffusion_model.joint_blocks.30.x_block.attn.qkv"),
    "LoRA with a linked strength": (lora_with_a_linked_strength, "strength_model of LoraLoaderModelOnly (node new"),
    "merged models": (merged, "cannot see through ModelMergeSimple (node new"),
    "unknown node behind a stock loader": (unknown_node_behind_a_stock_loader, "cannot see through 'Swap blocks' (wanBlockSwap, node new"),
    "other times": (other_times, "a ModelSampling node tells the network other times than this model (SD3) was made for"),
    "a file with missing weights": (spoilt_file("torn"), "'torn.safetensors' is not whole: 1 weights are missing (joint_blocks.0.x_block.attn.proj.weight)"),
    "a GGUF file": (spoilt_file("gguf"), "'gguf.safetensors' is a GGUF file"),
    "a file that is no model": (spoilt_file("notes"), "ComfyUI cannot tell what kind of model 'notes.safetensors' is"),
    "area": (area, "the positive conditioning carries an area"),
    "mask": (mask, "the positive conditioning carries a mask"),
    "time range": (time_range, "the negative conditioning carries a time range"),
    "picture in the latent": (picture_in_latent, "latent_image holds a picture"),
    "noise mask": (noise_mask, "latent_image carries a noise mask"),
    "two Live LoRAs": (two_live_loras, "two Live LoRA nodes; keep one"),
    "strength": (bad_widget(LIVE, strength=0.5), "strength is 0.5 in Live LoRA; set it to 1 for training"),
    "another run's LoRA": (bad_widget(LIVE, run_name="another"), "Live LoRA uses the run 'another', this node trains 'refused'"),
    "no Live LoRA": (run_without_live_lora, "put Live LoRA with this run_name between the loader and the sampler"),
    "preview on another model": (preview_with_another_model, "connect the same MODEL"),
    "not a pattern": (bad_widget(TRAINER, target_pattern="attn("), "target_pattern 'attn(' is not a regular expression"),
    "start of another model": (start_of_another_model, "start_from: a run cannot start from the LoRA"),
    "start with NaN": (start_with_nan, "' holds NaN or infinity: the file is damaged, or its training failed; take another one"),
    "start that is gone": (bad_widget(LIVE, start_from="gone.safetensors"), "start_from"),
    "missing version": (missing_version, "run 'refused' has no version 7; the newest is 1"),
    "an old version": (old_version, "set version to -1 in Live LoRA, or go back to version 1 in the Stepwise GRPO panel"),
    "missing average": (missing_average, "kept no averaged weights for version 1"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_with_one_sentence(server, case):
    spoil, says = CASES[case]
    graph = first_loop(server, "refused")
    spoil(server, graph)
    refused(server, graph, says)


def test_a_node_nobody_knows_may_stay_where_the_model_tells_its_file_and_carries_no_lora(server):
    graph = first_loop(server, "seen through")
    insert(graph, LIVE, "model", "wanBlockSwap", "model")
    assert note(server.run(graph), graph).startswith("Queued for the trainer")


def test_without_a_trainer_the_experience_waits_and_the_node_shows_the_command(server):
    graph = first_loop(server, "nobody home")
    text = note(server.run(graph), graph)
    assert text.startswith("Queued for the trainer (1 waiting). No trainer ")
    command = text.splitlines()[-1]
    assert "training" in command and "output é" in command
    graph = first_loop(server, "nobody home", 1)
    assert "(2 waiting)" in note(server.run(graph), graph)


def test_a_missing_run_leaves_the_model_as_it_is(server):
    graph = first_loop(server, "not begun")
    show = add(graph, "PreviewAny", source=[find(graph, LIVE), 2])
    assert server.run(graph)[show]["text"] == ["run 'not begun' has no version yet: the model without LoRA"]


def test_the_sampler_without_the_loop_makes_pictures_in_the_stock_nodes(server):
    demo = {"class_type": "StepwiseGRPO_DemoModel", "inputs": {}}
    graph = {"demo": demo, "text": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["demo", 1], "text": "a big red circle at the top"}}}
    graph["empty"] = {"class_type": "EmptySD3LatentImage", "inputs": {"width": 128, "height": 128, "batch_size": 2}}
    graph["sigmas"] = {"class_type": "BasicScheduler", "inputs": {"model": ["demo", 0], "scheduler": "simple", "steps": 4, "denoise": 1.0}}
    graph["sde"] = {"class_type": "StepwiseGRPO_StepwiseSDE", "inputs": {"law": "flow", "eta": -1.0, "seed": 3}}
    sampler = {"model": ["demo", 0], "add_noise": True, "noise_seed": 1, "cfg": 1.0, "positive": ["text", 0], "negative": ["text", 0]}
    sampler |= {"sampler": ["sde", 0], "sigmas": ["sigmas", 0], "latent_image": ["empty", 0]}
    graph["sample"] = {"class_type": "SamplerCustom", "inputs": sampler}
    graph["decode"] = {"class_type": "VAEDecode", "inputs": {"samples": ["sample", 0], "vae": ["demo", 2]}}
    graph["show"] = {"class_type": "PreviewImage", "inputs": {"images": ["decode", 0]}}
    first, second = (server.picture(image) for image in server.run(graph)["show"]["images"])
    assert first != second
    graph["sigmas"]["inputs"]["denoise"] = 0.5
    refused(server, graph, "the sigmas must start at 1")
