"""The artist's file as graph and trainer load it: one precision, LoRAs below the trained one, and what is refused before a run.

On the tiny random SD3 of bench.py, with ComfyUI in this process.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.bench import Bench
from stepwise_grpo.training import lora
from stepwise_grpo.training.base import Unfit, describe, describe_lora
from stepwise_grpo.training.config import Job

LAYER = "joint_blocks.0.x_block.attn.qkv"  # 128 -> 384


@pytest.fixture
def loading(backend: Any, models: Path) -> Any:
    from stepwise_grpo.training.backends import loading

    loading.set_model_folders({"diffusion_models": [str(models)], "checkpoints": [str(models)], "loras": [str(models)]})
    return loading


def changed(bench: Bench, name: str, change: Any) -> Path:
    """The bench's file under another name with other tensors."""
    tensors = change(safetensors.torch.load_file(bench.file()))
    path = bench.folder / name
    safetensors.torch.save_file(tensors, path)
    return path


def without(*names: str) -> Any:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def tensors_of_lora(style: str = "native", layers: tuple[str, ...] = (LAYER,), seed: int = 0) -> dict[str, torch.Tensor]:
    """A LoRA of rank 2 in one of the forms that people share."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for layer in layers:
        rows = 128 if style == "diffusers" else 384
        down, up = torch.randn(2, 128, generator=generator), torch.randn(rows, 2, generator=generator)
        if style == "kohya":
            name = "lora_unet_" + layer.replace(".", "_")
            tensors |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up, f"{name}.alpha": torch.tensor(1.0)}
        elif style == "diffusers":
            tensors |= {"transformer.transformer_blocks.0.attn.to_q.lora_A.weight": down, "transformer.transformer_blocks.0.attn.to_q.lora_B.weight": up}
        else:
            tensors |= {f"diffusion_model.{layer}.lora_A.weight": down, f"diffusion_model.{layer}.lora_B.weight": up}
    return tensors


def lora_file(folder: Path, name: str, tensors: dict[str, torch.Tensor]) -> Path:
    path = folder / name
    if not path.exists():  # the loader maps files into memory
        safetensors.torch.save_file(tensors, path)
    return path


def base_with(bench: Bench, *loras: tuple[Path, float], **more: Any) -> dict[str, Any]:
    path = bench.file()
    return {**describe("diffusion_models", path.name, path, **more), "loras": [describe_lora(file.name, file, strength) for file, strength in loras]}


# precision


@pytest.mark.parametrize("weight_dtype", ["fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"])
def test_the_trainer_loads_the_precision_of_the_graph(weight_dtype, bench, loading):
    name = bench.file().name
    graph = loading.load_model("diffusion_models", name, weight_dtype)
    trained = bench.backend.open_policy(Job(base=describe("diffusion_models", name, bench.file(), weight_dtype), rank=4))
    dtype = torch.float8_e5m2 if weight_dtype == "fp8_e5m2" else torch.float8_e4m3fn
    for model in (graph, trained.patcher):
        assert {w.dtype for key, w in model.model.diffusion_model.state_dict().items() if "lora" not in key} >= {dtype}
    assert torch.equal(bench.velocity(trained), bench.velocity(loading.load_model("diffusion_models", name, weight_dtype.removesuffix("_fast"))))
    assert (bench.velocity(trained) - bench.velocity(loading.load_model("diffusion_models", name))).abs().max() > 1e-3
    assert all(gradient is not None and gradient.isfinite().all() for gradient in bench.gradients(trained).values())


def test_the_fast_product_of_fp8_is_for_the_graph_alone(bench, loading):
    fast = loading.load_model("diffusion_models", bench.file().name, "fp8_e4m3fn_fast")
    base = describe("diffusion_models", bench.file().name, bench.file(), "fp8_e4m3fn_fast")
    assert fast.model.model_config.optimizations.get("fp8") and not loading.load_base(base).model.model_config.optimizations.get("fp8")


def test_a_precision_that_does_not_exist_is_refused_with_the_known_ones(bench, loading):
    with pytest.raises(Unfit, match="weight_dtype must be one of default, fp8_e4m3fn, .*; got 'int3'"):
        loading.load_model("diffusion_models", bench.file().name, "int3")


def test_a_type_that_the_device_cannot_hold_is_refused_and_those_it_can_are_not(loading):
    for name in ("fp8_e4m3fn", "fp8_e5m2"):
        loading.check_dtype(loading.DTYPES[name]["dtype"], torch.device("cpu"))
    with pytest.raises(Unfit, match=r"this device \(cpu\) cannot work with float4_e2m1fn_x2; choose another weight_dtype"):
        loading.check_dtype(torch.float4_e2m1fn_x2, torch.device("cpu"))  # as fp8 on an Apple GPU: no such cast


def test_the_check_comes_before_the_file_is_loaded(bench, loading, monkeypatch):
    monkeypatch.setitem(loading.DTYPES, "fp4", {"dtype": torch.float4_e2m1fn_x2})
    monkeypatch.setattr(loading, "_load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(Unfit, match="choose another weight_dtype"):
        loading.load_base(describe("diffusion_models", bench.file().name, bench.file(), "fp4"))


# LoRAs below the trained one


@pytest.mark.parametrize("style", ["native", "kohya", "diffusers"])
def test_loras_below_the_trained_one_are_applied_as_the_stock_loader_does(style, bench, loading, models):
    import comfy.sd

    tensors = tensors_of_lora(style)
    path, other = lora_file(models, f"{style}.safetensors", tensors), lora_file(models, "other.safetensors", tensors_of_lora(seed=1))
    policy = bench.backend.open_policy(Job(base=base_with(bench, (path, 0.5), (other, -0.3)), rank=4))
    stock = bench.patcher()
    for file, strength in ((path, 0.5), (other, -0.3)):
        stock = comfy.sd.load_lora_for_models(stock, None, safetensors.torch.load_file(file), strength, 0)[0]
    torch.testing.assert_close(bench.velocity(policy), bench.velocity(stock), rtol=0, atol=1e-5)
    assert (bench.velocity(stock) - bench.velocity(bench.patcher())).abs().max() > 1e-2


def test_the_trained_lora_lies_on_them_and_its_file_says_so_alone(bench, loading, models):
    """A version file holds what was trained, not what lies below."""
    path = lora_file(models, "below.safetensors", tensors_of_lora())
    policy = bench.backend.open_policy(Job(base=base_with(bench, (path, 1.0)), rank=4, alpha=8.0))
    policy.set_weights({name: w if "lora_A" in name else torch.full_like(w, 0.02) for name, w in policy.weights().items()})
    on_both = bench.stock(loading.put_loras(bench.patcher(), [describe_lora(path.name, path, 1.0)]), policy)
    torch.testing.assert_close(bench.velocity(policy), bench.velocity(on_both), rtol=0, atol=1e-5)
    assert policy.matched_keys(lora.file_tensors(policy.weights(), 8.0)) == (bench.architecture.linear, bench.architecture.linear)


def test_a_lora_of_another_model_is_refused_by_name(bench, loading, models):
    path = lora_file(models, "flux style.safetensors", {f"transformer.single_transformer_blocks.0.attn.to_q.lora_{x}.weight": torch.zeros(2, 2) for x in "AB"})
    with pytest.raises(Unfit, match=r"the LoRA 'flux style.safetensors' does not fit this model \(SD3\): none of its layers exist there, or not in that size; take it out"):
        bench.backend.open_policy(Job(base=base_with(bench, (path, 1.0)), rank=4))


@pytest.mark.parametrize("style", ["native", "kohya"])
def test_a_lora_that_fits_only_in_part_is_refused_with_the_count(style, bench, loading, models):
    layers = (LAYER, LAYER.replace("0", "1"), LAYER.replace("0", "7"))
    path = lora_file(models, f"larger {style}.safetensors", tensors_of_lora(style, layers))
    with pytest.raises(Unfit, match=rf"'larger {style}.safetensors' fits this model \(SD3\) only in 2 of 3 layers, not in .*blocks.7"):
        bench.backend.open_policy(Job(base=base_with(bench, (path, 1.0)), rank=4))


def test_a_lora_for_another_size_of_the_same_kind_of_model_is_refused(bench, loading, models):
    """Its layers have the same names; ComfyUI logs an error for each and leaves the weight as it is."""
    tensors = {name: tensor[:, :64].contiguous() if "lora_A" in name else tensor for name, tensor in tensors_of_lora().items()}
    path = lora_file(models, "small.safetensors", tensors)
    with pytest.raises(Unfit, match=r"the LoRA 'small.safetensors' does not fit this model \(SD3\): none of its layers exist there, or not in that size"):
        bench.backend.open_policy(Job(base=base_with(bench, (path, 1.0)), rank=4))


def test_layers_of_text_encoders_in_a_lora_file_do_not_count(bench, loading, models):
    names = ("lora_te1_text_model_encoder_layers_0_mlp_fc1", "text_encoders.clip_l.transformer.a")
    tensors = tensors_of_lora() | {f"{name}.lora_{x}.weight": torch.zeros(2, 2) for name in names for x in ("up", "down")}
    path = lora_file(models, "with text.safetensors", tensors)
    bench.backend.open_policy(Job(base=base_with(bench, (path, 1.0)), rank=4))


def test_a_file_that_is_no_lora_is_refused(bench, loading):
    with pytest.raises(Unfit, match="does not fit this model"):
        bench.backend.open_policy(Job(base=base_with(bench, (bench.file(), 1.0)), rank=4))


# files that are refused


@pytest.mark.parametrize("kind", ["diffusion_models", "checkpoints"])
@pytest.mark.parametrize("level", [logging.WARNING, logging.CRITICAL], ids=["as usual", "with ComfyUI's log turned off"])
def test_a_model_with_missing_weights_is_refused_with_some_of_their_names(kind, level, bench, loading, caplog):
    gone = [f"{LAYER}.weight", f"{LAYER}.bias", "final_layer.linear.weight", "final_layer.linear.bias"]
    path = changed(bench, f"torn {kind} {level}.safetensors", lambda t: {"model.diffusion_model." * (kind == "checkpoints") + k: v for k, v in without(*gone)(t).items()})
    with caplog.at_level(level), pytest.raises(Unfit, match=rf"'{path.name}' is not whole: 4 weights are missing \(.*\.weight.*\), which ComfyUI would leave random") as caught:
        bench.backend.open_policy(Job(base=describe(kind, path.name, path)))
    assert sum(name in str(caught.value) for name in gone) == 3


def test_a_whole_model_is_taken_as_a_checkpoint_too_and_more_weights_than_needed_do_no_harm(bench, loading):
    path = changed(bench, "more.safetensors", lambda t: {**{f"model.diffusion_model.{k}": v for k, v in t.items()}, "vae.x": torch.zeros(1)})
    policy = bench.backend.open_policy(Job(base=describe("checkpoints", path.name, path)))
    assert torch.equal(bench.velocity(policy), bench.velocity(bench.patcher()))


def test_a_file_that_was_cut_off_is_refused(bench, loading):
    path = bench.folder / "cut.safetensors"
    path.write_bytes(bench.file().read_bytes()[:-1000])
    with pytest.raises(Unfit, match="ComfyUI cannot load 'cut.safetensors', which is damaged .*download it again"):
        bench.backend.open_policy(Job(base=describe("diffusion_models", path.name, path)))


def test_weights_of_other_shapes_are_refused(bench, loading):
    path = changed(bench, "shapes.safetensors", lambda t: {**t, f"{LAYER}.weight": torch.zeros(384, 64)})
    with pytest.raises(Unfit, match="ComfyUI cannot load 'shapes.safetensors', .*size mismatch for joint_blocks.0.x_block.attn.qkv.weight"):
        bench.backend.open_policy(Job(base=describe("diffusion_models", path.name, path)))


def test_a_fault_of_the_machine_is_not_called_a_fault_of_the_file(bench, loading, monkeypatch):
    """The trainer tries again later; the file is kept as it is."""

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loading.comfy.sd, "load_diffusion_model", full)
    with pytest.raises(torch.OutOfMemoryError):
        bench.backend.open_policy(bench.job())


def test_loading_leaves_comfyui_as_it_was(bench, loading):
    import comfy.model_base

    load = comfy.model_base.BaseModel.load_model_weights
    loading.load_model("diffusion_models", bench.file().name)
    assert comfy.model_base.BaseModel.load_model_weights is load


def test_a_gguf_file_is_refused_by_the_trainer(loading, models, bench):
    path = models / "renamed.safetensors"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(Unfit, match="'renamed.safetensors' is a GGUF file"):
        bench.backend.open_policy(replace(bench.job(), base=describe("diffusion_models", path.name, path)))


# models of another kind, as ComfyUI's own classes make them, without their weights

OTHER_KINDS = {
    "CosmosT2V": ("CosmosVideo", r"not flow matching \(CosmosVideo\)"),
    "CosmosT2IPredict2": ("CosmosPredict2", r"not flow matching \(CosmosPredict2\)"),
    "HiDreamO1": ("HiDreamO1", r"this model \(HiDreamO1\) mixes noise and picture in its own way \(noise scale\)"),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_cosmos_and_hidream_o1_are_refused_by_name_with_the_reason(kind, bench, loading):
    import comfy.model_patcher
    import comfy.supported_models

    if not hasattr(comfy.supported_models, kind):
        pytest.skip(f"this ComfyUI has no {kind}")
    name, says = OTHER_KINDS[kind]
    config = getattr(comfy.supported_models, kind)({"disable_unet_model_creation": True})
    config.set_inference_dtype(torch.float32, None)
    model = config.get_model({})
    assert type(model).__name__ == name
    with pytest.raises(Unfit, match=says):
        bench.backend.check_flow_matching(comfy.model_patcher.ModelPatcher(model, torch.device("cpu"), torch.device("cpu")))
