"""A version in the layout of diffusers and PEFT, loaded by diffusers' and PEFT's own loaders into models of the same sizes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from stepwise_grpo.tests.architectures import ARCHITECTURES, detection_of
from stepwise_grpo.tests.bench import Bench
from stepwise_grpo.tests.nodes.graphs import ROOT, version_by_hand
from stepwise_grpo.training import lora
from stepwise_grpo.training.export import export
from stepwise_grpo.training.job import RunFolder, digest_of, write_whole

# Sizes of tests/architectures.py in the words of diffusers.
_HEADS = {"attention_head_dim": 16, "num_attention_heads": 2}
SD3 = {
    "in_channels": 16, "num_layers": 2, "attention_head_dim": 64, "num_attention_heads": 2, "joint_attention_dim": 32,
    "caption_projection_dim": 128, "pooled_projection_dim": 32, "pos_embed_max_size": 8, "qk_norm": "rms_norm",
}  # fmt: skip
_FLUX = dict(_HEADS, in_channels=64, num_layers=2, num_single_layers=2, joint_attention_dim=32, axes_dims_rope=(4, 6, 6))
MODELS = {
    "sd3": ("SD3Transformer2DModel", SD3),
    "sd35": ("SD3Transformer2DModel", SD3 | {"dual_attention_layers": (0, 1)}),
    "flux": ("FluxTransformer2DModel", dict(_FLUX, pooled_projection_dim=32, guidance_embeds=True)),
    "chroma": ("ChromaTransformer2DModel", dict(_FLUX, approximator_num_channels=64, approximator_hidden_dim=32, approximator_layers=2)),
    "auraflow": ("AuraFlowTransformer2DModel", dict(_HEADS, in_channels=4, num_mmdit_layers=2, num_single_dit_layers=1, joint_attention_dim=2048, caption_projection_dim=32, pos_embed_max_size=64)),
    "qwen_image": ("QwenImageTransformer2DModel", dict(_HEADS, in_channels=64, num_layers=2, joint_attention_dim=32, axes_dims_rope=(4, 6, 6))),
    "z_image": ("ZImageTransformer2DModel", dict(dim=256, n_layers=2, n_refiner_layers=1, n_heads=16, n_kv_heads=16, cap_feat_dim=32, axes_dims=[4, 6, 6], axes_lens=[1536, 512, 512])),
    "hidream": ("HiDreamImageTransformer2DModel", dict(_HEADS, patch_size=2, in_channels=16, num_layers=1, num_single_layers=1, caption_channels=[32, 32], text_emb_dim=32, axes_dims_rope=(8, 4, 4), llama_layers=[0, 1])),
    "flux2": ("Flux2Transformer2DModel", dict(_HEADS, in_channels=128, num_layers=2, num_single_layers=2, joint_attention_dim=32, timestep_guidance_channels=256, axes_dims_rope=(4, 4, 4, 4))),
    "kandinsky5": ("Kandinsky5Transformer3DModel", dict(model_dim=128, time_dim=64, ff_dim=64, in_visual_dim=16, out_visual_dim=16, num_text_blocks=1, num_visual_blocks=2, visual_cond=True)),
}  # fmt: skip
LACKING = {"flux2"}  # names that ComfyUI 0.3.75 does not have
known = pytest.mark.parametrize("bench", MODELS, indirect=True)
sd3 = pytest.mark.parametrize("bench", ["sd3"], indirect=True)


def version_of(bench: Bench, output: Path, targets: str = "attention", ema: bool = False) -> tuple[RunFolder, dict[str, Tensor]]:
    """A run with a version that has learnt something, and the change of every weight of ComfyUI's model."""
    folder, policy = RunFolder(output, "my run é"), bench.policy(targets=targets)
    data = lora.save(policy.weights(), policy.job, {"run": folder.name, "version": 1, "prompts": ["a"]})
    write_whole(folder.version_file(1, ema), data)
    folder.write_latest({"version": 1, "file": folder.version_file(1).name, "digest": digest_of(data), "experience": ""})
    return folder, deltas(policy.weights(), policy.job.alpha / policy.job.rank)


def deltas(weights: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    return {n.removesuffix(".lora_A.weight"): scale * weights[n.replace("lora_A", "lora_B")].double() @ w.double() for n, w in weights.items() if "lora_A" in n}


def exported(bench: Bench, folder: RunFolder, *arguments: Any, **more: Any) -> Path:
    with detection_of(bench.architecture):
        try:
            return export(folder, *arguments, **more)
        except ValueError as error:
            if bench.name in LACKING and "has no name in diffusers' layout" in str(error):
                pytest.skip("this ComfyUI does not know diffusers' names for it")
            raise


def transformer(bench: Bench) -> nn.Module:
    diffusers = pytest.importorskip("diffusers")
    name, config = MODELS[bench.name]
    torch.manual_seed(0)
    return getattr(diffusers, name)(**config)


def adapter_deltas(model: nn.Module) -> dict[str, Tensor]:
    """The change of every weight as PEFT computes it, by the layer's path."""
    from peft.tuners.lora import LoraLayer

    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            (adapter,) = layer.active_adapters
            found[name.removeprefix("base_model.model.")] = layer.get_delta_weight(adapter).detach().double()
    return found


def pieces(bench: Bench, delta: dict[str, Tensor]) -> list[Tensor]:
    """ComfyUI's changes cut as its own loader cuts those of diffusers: all that must be found again, in no order."""
    import comfy.lora

    cut: dict[tuple[str, int], Tensor] = {}
    for name, target in comfy.lora.model_lora_keys_unet(bench.patcher().model, {}).items():
        if not isinstance(target, tuple) or name.endswith("linear1_qkv"):  # q, k and v in one, as yet another program has them
            continue
        key, part, order = (*target, None)[:3]
        layer = key.removeprefix(lora.PREFIX).removesuffix(".weight")
        if layer in delta:
            start, length = part[1:] if part else (0, len(delta[layer]))
            piece = delta[layer][start : start + length]
            cut[layer, start] = order(piece) if order else piece
    whole = [d for layer, d in delta.items() if layer not in {layer for layer, _ in cut}]
    return whole + list(cut.values())


@known
@pytest.mark.parametrize("targets", ["attention", "all"])
def test_diffusers_loads_every_layer_with_the_change_it_has_in_comfyui(bench, tmp_path, targets, caplog, recwarn):
    if targets == "all" and bench.name == "z_image":
        pytest.skip("diffusers and ComfyUI agree on the width of its MLP at the released size only")
    folder, delta = version_of(bench, tmp_path, targets)
    model = transformer(bench)
    try:
        path = exported(bench, folder, None, "diffusers")
    except ValueError as error:
        assert targets == "all" and "has no name in diffusers' layout" in str(error)
        pytest.skip(str(error))
    tensors = safetensors.torch.load_file(path)
    model.load_lora_adapter(dict(tensors), prefix="transformer")
    loaded = adapter_deltas(model)
    assert {f"transformer.{name}.lora_{side}.weight" for name in loaded for side in "AB"} == set(tensors)
    assert not [record for record in caplog.records if "unexpected" in record.message.lower() or "missing" in record.message.lower()]
    found = sum(d.square().sum().item() for d in loaded.values())
    assert found == pytest.approx(sum(d.square().sum().item() for d in delta.values()), rel=1e-5)  # nothing twice, nothing left out
    if bench.name != "flux2":
        for piece in pieces(bench, delta):
            assert min((piece - d).abs().max().item() for d in loaded.values() if d.shape == piece.shape) <= 1e-6


@known
def test_comfyuis_loader_takes_the_exported_file_for_the_same_lora(bench, tmp_path):
    """Which part is q and which is k is ComfyUI's own knowledge: its loader must put every part back where it was."""
    import comfy.sd

    folder, _ = version_of(bench, tmp_path)
    path = exported(bench, folder, 1, "diffusers")
    tensors = safetensors.torch.load_file(path)
    if bench.name == "z_image":  # older ComfyUI lists these names under its own prefix
        tensors = {name.replace("transformer.", lora.PREFIX): w for name, w in tensors.items()}
    patched = comfy.sd.load_lora_for_models(bench.patcher(), None, tensors, 1.0, 0)[0]
    assert (bench.velocity(patched) - bench.velocity(bench.policy())).abs().max() <= 1e-4
    spoilt = comfy.sd.load_lora_for_models(bench.patcher(), None, {name: w * (2 if "lora_B" in name else 1) for name, w in tensors.items()}, 1.0, 0)[0]
    assert (bench.velocity(spoilt) - bench.velocity(bench.policy())).abs().max() > 1e-3


@known
def test_peft_loads_the_adapter_folder(bench, tmp_path):
    peft = pytest.importorskip("peft")
    folder, delta = version_of(bench, tmp_path)
    model = transformer(bench)
    path = exported(bench, folder, 1, "peft")
    assert path == folder.loras / "v000001_peft"
    loaded = adapter_deltas(peft.PeftModel.from_pretrained(model, str(path)))
    tensors = safetensors.torch.load_file(path / "adapter_model.safetensors")
    assert {f"base_model.model.{name}.lora_A.weight" for name in loaded} == {name for name in tensors if "lora_A" in name}
    assert sum(d.square().sum().item() for d in loaded.values()) == pytest.approx(sum(d.square().sum().item() for d in delta.values()), rel=1e-5)


PIPELINES = {"sd3": "SD3LoraLoaderMixin", "flux": "FluxLoraLoaderMixin", "qwen_image": "QwenImageLoraLoaderMixin", "z_image": "ZImageLoraLoaderMixin"}


@pytest.mark.parametrize("bench", PIPELINES, indirect=True)
def test_a_pipelines_loader_takes_the_file(bench, tmp_path):
    pytest.importorskip("diffusers")
    import diffusers.loaders

    loader = getattr(diffusers.loaders, PIPELINES[bench.name])
    folder, delta = version_of(bench, tmp_path)
    path = exported(bench, folder, 1, "diffusers")
    found = loader.lora_state_dict(str(path.parent), weight_name=path.name)
    model = transformer(bench)
    more = {"network_alphas": None} if bench.name == "flux" else {}
    loader.load_lora_into_transformer(found, transformer=model, **more)
    loaded = adapter_deltas(model)
    assert 2 * len(loaded) == len(safetensors.torch.load_file(path))
    assert sum(d.square().sum().item() for d in loaded.values()) == pytest.approx(sum(d.square().sum().item() for d in delta.values()), rel=1e-5)


@sd3
def test_an_export_lies_beside_the_version_and_is_none_itself(bench, tmp_path):
    folder, _ = version_of(bench, tmp_path)
    before = folder.version_file(1).read_bytes()
    path = exported(bench, folder, None, "diffusers")
    assert path == folder.loras / "v000001_diffusers.safetensors"
    assert folder.latest()["version"] == 1 and folder.version_file(1).read_bytes() == before
    assert path not in {folder.version_file(version, ema) for version in range(3) for ema in (False, True)}
    again = exported(bench, folder, 1, "diffusers", out=tmp_path / "else where" / "x.safetensors")
    assert again.read_bytes() == path.read_bytes()
    metadata = lora.metadata_of(path.read_bytes())
    assert "modelspec.title" in metadata and "stepwise_grpo" not in metadata


@sd3
def test_the_average_is_exported_as_such(bench, tmp_path):
    folder, _ = version_of(bench, tmp_path, ema=True)
    assert exported(bench, folder, 1, "diffusers", ema=True).name == "v000001_ema_diffusers.safetensors"
    with pytest.raises(ValueError, match="run 'my run é' has no version 1 in"):
        export(folder, 1, "diffusers")


@sd3
def test_versions_that_are_not_there_are_refused(bench, tmp_path):
    folder, _ = version_of(bench, tmp_path)
    for version in (0, 2):
        with pytest.raises(ValueError, match=f"has no version {version} in .*; the newest version is 1"):
            export(folder, version, "diffusers")
    with pytest.raises(ValueError, match="has no version 0 in"):
        export(RunFolder(tmp_path, "nothing yet"), None, "diffusers")


@sd3
def test_the_base_is_not_loaded_for_its_names(bench, tmp_path, monkeypatch):
    from stepwise_grpo.training.backends import diffusers_names

    monkeypatch.setattr(diffusers_names, "load_base", lambda base: pytest.fail("loaded the base model"))
    folder, _ = version_of(bench, tmp_path)
    exported(bench, folder, 1, "diffusers")
    model = diffusers_names.skeleton(bench.job().base)
    assert all(parameter.is_meta for parameter in model.diffusion_model.parameters())


@pytest.mark.parametrize("bench", [name for name in ARCHITECTURES if name not in MODELS], indirect=True)
def test_architectures_without_diffusers_names_are_refused_with_what_can_be_used(bench, tmp_path):
    folder, _ = version_of(bench, tmp_path)
    with pytest.raises(ValueError, match="ComfyUI's own layout is the only one: use the version file as it is"):
        exported(bench, folder, 1, "diffusers")
    assert [path.name for path in folder.loras.iterdir()] == ["v000001.safetensors"]


def typed(comfyui_folder: Path, output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "training", "export", *arguments, "--output", output, "--comfy", comfyui_folder]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, encoding="utf-8", env={**os.environ, "PYTHONIOENCODING": "utf-8"})


def test_as_a_command(comfyui_folder, tmp_path):
    """It writes the file and says where; what cannot be done ends in one sentence and an exit code."""
    version_by_hand(tmp_path, "my run é")
    done = typed(comfyui_folder, tmp_path, "my run é")
    path = RunFolder(tmp_path, "my run é").loras / "v000001_diffusers.safetensors"
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [str(path)]), done.stderr
    assert all(name.startswith("transformer.transformer_blocks.") for name in safetensors.torch.load_file(path))
    refused = typed(comfyui_folder, tmp_path, "my run é", "--version", "7", "--format", "peft")
    assert refused.returncode == 1 and "has no version 7" in refused.stderr and "Traceback" not in refused.stderr
    told = subprocess.run([sys.executable, str(ROOT / "training"), "--help"], capture_output=True, text=True)
    assert "python training export" in told.stdout
