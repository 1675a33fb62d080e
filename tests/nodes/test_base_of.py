"""What a MODEL and the graph together tell about its base, with ComfyUI in this process."""

from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.nodes.graphs import FLOW
from stepwise_grpo.training.base import Unfit, describe, describe_lora
from stepwise_grpo.training.config import Origin

pytestmark = pytest.mark.usefixtures("comfy")
LAYER = "diffusion_model.joint_blocks.0.x_block.attn.qkv"
FILE = "demo_flow.safetensors"


@pytest.fixture
def files(comfy, tmp_path, monkeypatch):
    """A folder that ComfyUI knows for models and LoRAs, with the demo's model and a LoRA."""
    import folder_paths

    (tmp_path / FILE).write_bytes(FLOW.read_bytes())
    rows, columns = safetensors.torch.load_file(FLOW)[next(name for name in safetensors.torch.load_file(FLOW) if name.endswith("joint_blocks.0.x_block.attn.qkv.weight"))].shape
    for seed, name in enumerate(("style", "other")):
        generator = torch.Generator().manual_seed(seed)
        tensors = {f"{LAYER}.lora_A.weight": torch.randn(2, columns, generator=generator), f"{LAYER}.lora_B.weight": torch.randn(rows, 2, generator=generator)}
        safetensors.torch.save_file(tensors, tmp_path / f"{name}.safetensors")
    for kind in ("diffusion_models", "loras"):
        monkeypatch.setitem(folder_paths.folder_names_and_paths, kind, ([str(tmp_path)], {".safetensors", ".gguf"}))
    return tmp_path


@pytest.fixture
def plain(files):
    """As Load Diffusion Model gives it."""
    import comfy.sd

    return comfy.sd.load_diffusion_model(str(files / FILE))


def with_lora(model, files, name, strength):
    import comfy.sd

    return comfy.sd.load_lora_for_models(model, None, safetensors.torch.load_file(files / f"{name}.safetensors"), strength, 0)[0]


def base_of(model, *loras, loader=("UNETLoader", {"unet_name": FILE, "weight_dtype": "default"}), between=()):
    """``base_of`` in a graph: loader, ``between``, LoRA loaders, sampler."""
    from stepwise_grpo.nodes import base_model

    prompt, last = {"0": {"class_type": loader[0], "inputs": loader[1]}}, "0"
    nodes = [(kind, {}) for kind in between] + [("LoraLoaderModelOnly", {"lora_name": f"{name}.safetensors", "strength_model": strength}) for name, strength in loras]
    for i, (kind, inputs) in enumerate([*nodes, ("Sampler", {})], 1):
        prompt[str(i)], last = {"class_type": kind, "inputs": {**inputs, "model": [last, 0]}}, str(i)
    return base_model.base_of(model, SimpleNamespace(hidden=SimpleNamespace(prompt=prompt, unique_id=last)))


def test_a_stock_loader_is_described_by_its_file_and_precision(plain, files):
    assert base_of(plain) == describe("diffusion_models", FILE, files / FILE)
    fp8 = ("UNETLoader", {"unet_name": FILE, "weight_dtype": "fp8_e5m2"})
    assert base_of(plain, loader=fp8) == describe("diffusion_models", FILE, files / FILE, "fp8_e5m2")


def test_loras_that_the_graph_explains_become_part_of_the_base(plain, files):
    model = with_lora(with_lora(plain, files, "style", 0.5), files, "other", -1.0)
    expected = [describe_lora(f"{name}.safetensors", files / f"{name}.safetensors", strength) for name, strength in (("style", 0.5), ("other", -1.0))]
    assert base_of(model, ("style", 0.5), ("other", -1.0)) == {**describe("diffusion_models", FILE, files / FILE), "loras": expected}


@pytest.mark.parametrize(
    "on_the_model, in_the_graph",
    [
        ([("style", 0.5)], []),
        ([], [("style", 0.5)]),
        ([("style", 0.5)], [("style", 0.6)]),
        ([("style", 0.5), ("other", 1.0)], [("style", 0.5)]),
        ([("style", 0.5)], [("style", 0.5), ("style", 0.5)]),
    ],
)
@pytest.mark.parametrize("tells", [True, False], ids=["Base Model", "stock loader"])
def test_patches_that_the_graph_does_not_explain_are_refused(on_the_model, in_the_graph, tells, plain, files):
    from stepwise_grpo.nodes.convert import with_base

    model = with_base(plain, {"kind": "demo"}) if tells else plain
    for name, strength in on_the_model:
        model = with_lora(model, files, name, strength)
    with pytest.raises(ValueError, match="weights are patched otherwise than by the LoRA loaders in the graph .*, which the trainer cannot repeat"):
        base_of(model, *in_the_graph)


def test_patches_of_strength_0_do_nothing(plain, files):
    assert "loras" not in base_of(with_lora(plain, files, "style", 0.0), ("style", 0.0))


def test_patches_of_live_lora_are_its_own_wherever_it_stands(plain, files):
    from stepwise_grpo.nodes.convert import foreign_patches, mark_origin

    below = with_lora(plain, files, "style", 0.5)
    live = with_lora(below, files, "other", 1.0)
    mark_origin(below, live, Origin(run="r"))
    above = with_lora(live.clone(), files, "style", 0.25)
    assert foreign_patches(live) == foreign_patches(below)
    base = base_of(above, ("style", 0.5), ("style", 0.25), between=["StepwiseGRPO_LiveLoRA"])
    assert [lora["strength"] for lora in base["loras"]] == [0.5, 0.25]


def test_what_base_model_wrote_is_enough_without_other_patches_and_not_with_them(plain, files):
    from stepwise_grpo.nodes.convert import with_base

    known = with_base(plain, {"kind": "demo"})
    assert base_of(known, between=["Unknown"]) == {"kind": "demo"}
    with pytest.raises(ValueError, match=r"cannot see through Unknown \(node 1\)"):
        base_of(with_lora(known, files, "style", 0.5), ("style", 0.5), between=["Unknown"])
    with pytest.raises(ValueError, match=r"cannot see through Unknown \(node 1\)"):
        base_of(plain, between=["Unknown"])


def test_a_gguf_file_behind_a_loader_is_refused(plain, files):
    (files / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(Unfit, match="'m.gguf' is a GGUF file"):
        base_of(plain, loader=("UNETLoader", {"unet_name": "m.gguf", "weight_dtype": "default"}))
    with pytest.raises(ValueError, match="loads a GGUF file"):
        base_of(plain, loader=("UnetLoaderGGUF", {"unet_name": "m.gguf"}))


# sampling


def resampled(model, node, **widgets):
    import comfy_extras.nodes_model_advanced as stock

    return stock.NODE_CLASS_MAPPINGS[node]().patch(model, **widgets)[0]


@pytest.mark.parametrize("shift", [1.0, 7.0])
def test_a_shift_may_differ(shift, plain):
    from stepwise_grpo.nodes.convert import check_model

    check_model(resampled(plain, "ModelSamplingSD3", shift=shift))


@pytest.mark.parametrize(
    "node, widgets", [("ModelSamplingSD3", {"shift": 3.0, "multiplier": 1.0}), ("ModelSamplingFlux", {"max_shift": 1.15, "base_shift": 0.5, "width": 64, "height": 64})]
)
def test_other_times_for_the_network_are_refused_with_the_remedy(node, widgets, plain):
    """ModelSamplingAuraFlow is ModelSamplingSD3 with the multiplier 1."""
    from stepwise_grpo.nodes.convert import check_model

    with pytest.raises(ValueError, match=r"other times than this model \(SD3\) was made for; use the one of its kind: ModelSamplingSD3"):
        check_model(resampled(plain, node, **widgets))


def test_the_models_own_sampling_is_known_while_a_patched_clone_is_loaded(plain):
    """ComfyUI then has the patched one in the shared module."""
    import comfy.model_management

    from stepwise_grpo.nodes.convert import check_model

    patched = resampled(plain, "ModelSamplingSD3", shift=3.0, multiplier=1.0)
    comfy.model_management.load_models_gpu([patched])
    try:
        assert patched.model.model_sampling.multiplier == 1.0
        check_model(plain)
        with pytest.raises(ValueError, match="other times"):
            check_model(patched)
    finally:
        comfy.model_management.unload_all_models()


def test_another_mixture_of_noise_and_picture_is_refused(plain):
    from stepwise_grpo.nodes.convert import check_model

    model = resampled(plain, "ModelSamplingSD3", shift=3.0)
    model.object_patches["model_sampling"].calculate_denoised = lambda sigma, output, x: x - 2 * sigma * output
    with pytest.raises(ValueError, match="a node changes how the model mixes noise and picture"):
        check_model(model)


@pytest.mark.parametrize("kind", ["CosmosT2IPredict2", "HiDreamO1"])
def test_another_sampling_does_not_hide_a_model_of_another_kind(kind, comfy):
    import comfy.model_patcher
    import comfy.supported_models

    from stepwise_grpo.nodes.convert import check_model

    if not hasattr(comfy.supported_models, kind):
        pytest.skip(f"this ComfyUI has no {kind}")
    config = getattr(comfy.supported_models, kind)({"disable_unet_model_creation": True})
    config.set_inference_dtype(torch.float32, None)
    model = resampled(comfy.model_patcher.ModelPatcher(config.get_model({}), torch.device("cpu"), torch.device("cpu")), "ModelSamplingSD3", shift=3.0)
    model.object_patches["model_sampling"].noise_scale = 1.0
    with pytest.raises(Unfit, match="not flow matching|noise scale"):
        check_model(model)
