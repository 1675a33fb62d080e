"""Tiny random checkpoints of every architecture the trainer serves, as files that ComfyUI's stock loader takes.

An architecture is one entry of data; what they share is said once. ComfyUI's detection derives some sizes from the
file and fixes others to those of the released model: ``forced`` entries overwrite these with the tiny ones while
loading (``detection_of``). Class, loader, key map, conditioning and forward stay ComfyUI's own.
Nothing here imports ComfyUI before a function is called.
"""

import importlib.util
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

TOKENS = 6


@dataclass(frozen=True)
class Architecture:
    network: str
    """Module and class of the network under ``comfy.ldm``."""
    config: dict[str, Any]
    latent: tuple[int, ...]
    """Shape of one latent; video and Qwen-Image have a frame axis."""
    width: int
    """Features of a text token."""
    pooled: int = 0
    """Features of the pooled text; 0 = the text encoder has none."""
    plain: dict[str, Any] = field(default_factory=dict)
    """Further values of a conditioning entry."""
    mask: str = ""
    """The attention mask its text encoder hands over: of "ones", or of ones and zeros where it has "padded" to a fixed length."""
    llama: int = 0
    """Layers of a second text encoder whose states are handed over; 0 = none."""
    forced: bool = False
    """Whether detection must be told the tiny sizes."""
    in_place: bool = False
    """Whether the blocks overwrite what autograd has saved."""
    dead: str = ""
    """Pattern of LoRA layers that can have no gradient by construction."""
    linear: int = 0
    """Linear layers that the targets `attention` mean."""
    jumps: bool = False
    """Whether the network is discontinuous: it sends tokens to experts."""
    newer: dict[str, Any] = field(default_factory=dict)
    """What the constructor of newer ComfyUI wants besides."""

    def is_dead(self, layer: str) -> bool:
        return bool(self.dead) and re.match(self.dead, layer) is not None


_SD3 = dict(
    input_size=None, patch_size=2, in_channels=16, out_channels=16, depth=2, num_patches=64, pos_embed_max_size=8, adm_in_channels=32,
    context_embedder_config={"target": "torch.nn.Linear", "params": {"in_features": 32, "out_features": 128}},
    qk_norm="rms", x_block_self_attn_layers=[], pos_embed_scaling_factor=None,
)  # fmt: skip
_FLUX = dict(
    in_channels=16, out_channels=16, vec_in_dim=32, context_in_dim=32, hidden_size=32, mlp_ratio=4.0, num_heads=2, depth=2,
    depth_single_blocks=2, axes_dim=[4, 6, 6], theta=10000, patch_size=2, qkv_bias=True, guidance_embed=True,
)  # fmt: skip
_FLUX2 = dict(
    _FLUX, in_channels=128, out_channels=128, vec_in_dim=None, mlp_ratio=3.0, axes_dim=[4, 4, 4, 4], theta=2000, patch_size=1,
    qkv_bias=False, global_modulation=True, mlp_silu_act=True, ops_bias=False, default_ref_method="index", ref_index_scale=10.0,
)  # fmt: skip
_CHROMA = dict(
    {key: value for key, value in _FLUX.items() if key not in ("vec_in_dim", "guidance_embed")},
    in_channels=64, out_channels=64, in_dim=64, out_dim=32, hidden_dim=32, n_layers=2,
)  # fmt: skip
_AURAFLOW = dict(max_seq=64, cond_seq_dim=2048, n_double_layers=2, n_layers=3, dim=32, n_heads=2, global_conddim=32)
_LUMINA = dict(
    patch_size=2, in_channels=16, dim=48, cap_feat_dim=32, n_layers=2, n_refiner_layers=1, qk_norm=True, n_heads=4, n_kv_heads=2,
    axes_dims=[4, 4, 4], axes_lens=[300, 512, 512], rope_theta=10000.0, ffn_dim_multiplier=4.0,
)  # fmt: skip
_Z_IMAGE = dict(
    _LUMINA, dim=256, n_heads=16, n_kv_heads=16, axes_dims=[4, 6, 6], axes_lens=[1536, 512, 512], rope_theta=256.0,
    ffn_dim_multiplier=8 / 3, z_image_modulation=True, time_scale=1000.0, pad_tokens_multiple=32,
)  # fmt: skip  # its modulation reads 256 features, so a smaller one cannot be built
_QWEN = dict(in_channels=64, num_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, axes_dims_rope=(4, 6, 6))
_HIDREAM = dict(
    patch_size=2, in_channels=16, out_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
    caption_channels=[32, 32], text_emb_dim=32, num_routed_experts=4, num_activated_experts=2, axes_dims_rope=[8, 4, 4],
    max_resolution=[128, 128], llama_layers=[0, 1],
)  # fmt: skip
_WAN = dict(
    model_type="t2v", patch_size=(1, 2, 2), in_dim=16, out_dim=16, dim=128, num_heads=1, ffn_dim=64, num_layers=2, freq_dim=256,
    window_size=(-1, -1), qk_norm=True, cross_attn_norm=True, eps=1e-6,
)  # fmt: skip
_HUNYUAN = dict(
    in_channels=16, patch_size=[1, 2, 2], out_channels=16, vec_in_dim=768, axes_dim=[16, 56, 56], meanflow=False, context_in_dim=32,
    hidden_size=128, mlp_ratio=4.0, num_heads=1, depth=1, depth_single_blocks=1, theta=256, qkv_bias=True, byt5=False,
    guidance_embed=True, use_cond_type_embedding=False, vision_in_dim=None,
)  # fmt: skip
_HUNYUAN_IMAGE = dict(_HUNYUAN, in_channels=64, out_channels=64, patch_size=[1, 1], axes_dim=[64, 64], vec_in_dim=None, guidance_embed=False)
_OMNIGEN2 = dict(
    patch_size=2, in_channels=16, out_channels=None, hidden_size=48, num_layers=2, num_refiner_layers=1, num_attention_heads=4,
    num_kv_heads=2, multiple_of=256, ffn_dim_multiplier=None, norm_eps=1e-5, axes_dim_rope=[4, 4, 4], axes_lens=[1024, 1664, 1664],
    text_feat_dim=32, timestep_scale=1000.0,
)  # fmt: skip
_LTXV = dict(in_channels=128, cross_attention_dim=256, attention_head_dim=8, num_attention_heads=32, caption_channels=4096, num_layers=2)
_KANDINSKY5 = dict(
    model_dim=128, time_dim=64, ff_dim=64, visual_embed_dim=132, num_text_blocks=1, num_visual_blocks=2, axes_dims=(16, 24, 24),
    in_text_dim=3584, in_text_dim2=768,
)  # fmt: skip

_TXT_IDS = {"txt_ids_dims": []}
_SUM = {"meanflow_sum": False}

# The last block's text side ends nowhere: its output is dropped, and so are its queries.
_QWEN_DEAD = r"transformer_blocks\.1\.(attn\.(add_q_proj|to_add_out)|txt_mlp\..*)"
# Without reference pictures their part of the network is not called.
_OMNIGEN2_DEAD = r"ref_image_.*"

# guidance is 4 and not the usual 3.5: 3.5 * 1000 is rounded in bf16, which would hide everything else in that comparison
ARCHITECTURES = {
    "sd3": Architecture("modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper", _SD3, (16, 4, 6), 32, pooled=32, linear=7),
    "sd35": Architecture("modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper", dict(_SD3, x_block_self_attn_layers=[0, 1]), (16, 4, 6), 32, pooled=32, linear=11),
    "flux": Architecture("flux.model.Flux", _FLUX, (16, 4, 6), 32, pooled=32, plain={"guidance": 4.0}, forced=True, in_place=True, linear=12, newer=_TXT_IDS),
    "flux2": Architecture("flux.model.Flux", _FLUX2, (128, 2, 3), 32, plain={"guidance": 4.0}, forced=True, in_place=True, linear=12, newer={"txt_ids_dims": [3]}),
    "chroma": Architecture("chroma.model.Chroma", _CHROMA, (16, 4, 6), 32, forced=True, in_place=True, linear=12, newer=_TXT_IDS | {"vec_in_dim": None}),
    "auraflow": Architecture("aura.mmdit.MMDiT", _AURAFLOW, (4, 4, 6), 2048, forced=True, linear=20),
    "lumina2": Architecture("lumina.model.NextDiT", _LUMINA, (16, 4, 6), 32, mask="ones", forced=True, linear=8),
    "z_image": Architecture("lumina.model.NextDiT", _Z_IMAGE, (16, 4, 6), 32, mask="ones", forced=True, linear=8),
    "qwen_image": Architecture("qwen_image.model.QwenImageTransformer2DModel", _QWEN, (16, 1, 4, 6), 32, forced=True, dead=_QWEN_DEAD, linear=16),
    "hidream": Architecture("hidream.model.HiDreamImageTransformer2DModel", _HIDREAM, (16, 4, 6), 32, pooled=32, llama=2, forced=True, jumps=True, linear=12),
    "wan21": Architecture("wan.model.WanModel", _WAN, (16, 2, 4, 6), 4096, linear=16),
    "hunyuan_video": Architecture("hunyuan_video.model.HunyuanVideo", _HUNYUAN, (16, 2, 4, 6), 32, pooled=768, plain={"guidance": 6.0}, in_place=True, linear=10, newer=_SUM),
    "hunyuan_image": Architecture("hunyuan_video.model.HunyuanVideo", _HUNYUAN_IMAGE, (64, 3, 4), 32, in_place=True, linear=10, newer=_SUM),
    "omnigen2": Architecture("omnigen.omnigen2.OmniGen2Transformer2DModel", _OMNIGEN2, (16, 4, 6), 32, mask="ones", forced=True, dead=_OMNIGEN2_DEAD, linear=20),
    "ltxv": Architecture("lightricks.model.LTXVModel", _LTXV, (128, 2, 2, 3), 4096, mask="padded", in_place=True, linear=16),
    "kandinsky5": Architecture("kandinsky5.model.Kandinsky5", _KANDINSKY5, (16, 2, 4, 6), 3584, pooled=768, linear=20),
}  # fmt: skip


def exists(architecture: Architecture) -> bool:
    """Whether this ComfyUI has the architecture."""
    return importlib.util.find_spec(f"comfy.ldm.{architecture.network.split('.')[0]}") is not None


def _config(architecture: Architecture) -> dict[str, Any]:
    from comfyui_version import __version__

    newer = [int(number) for number in __version__.split(".")[:2]] > [0, 3]
    return architecture.config | (architecture.newer if newer else {})


def build(architecture: Architecture, seed: int = 0) -> nn.Module:
    """The network with random weights of a size that gives outputs of order 1."""
    import comfy.ops

    path, _, name = architecture.network.rpartition(".")
    network = getattr(importlib.import_module(f"comfy.ldm.{path}"), name)
    module = network(**_config(architecture), operations=comfy.ops.disable_weight_init, dtype=torch.float32, device="cpu")
    generator = torch.Generator("cpu").manual_seed(seed)
    for key, tensor in module.state_dict().items():
        tensor.copy_(_random(key, tensor.shape, generator))
    return module


def _random(key: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 2:
        return noise * max(0.08, 0.7 / math.sqrt(shape[1]))
    scale = key.endswith((".weight", ".scale")) and "norm" in key
    return noise * 0.08 + (1 if scale else 0)


def write(architecture: Architecture, path: Path, dtype: torch.dtype = torch.float32, scaled: str = "") -> Path:
    """The checkpoint as a file.

    ``scaled``: linear layers in fp8 with a scale each, as files have it that are "marked" by one tensor or "described" in metadata.
    """
    network, metadata = build(architecture), {}
    tensors = {key: tensor if scaled else tensor.to(dtype) for key, tensor in network.state_dict().items()}
    if scaled:
        layers = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
        for layer in layers:
            weight = tensors[f"{layer}.weight"]
            scale = weight.abs().max() / torch.finfo(dtype).max
            tensors[f"{layer}.weight"] = (weight / scale).to(dtype)
            tensors[f"{layer}.scale_weight" if scaled == "marked" else f"{layer}.weight_scale"] = scale
        if scaled == "marked":
            tensors["scaled_fp8"] = torch.zeros(2, dtype=dtype)  # two elements: weights only, no products in fp8
        else:
            metadata = {"_quantization_metadata": json.dumps({"layers": {layer: {"format": "float8_e4m3fn"} for layer in layers}})}
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path, metadata or None)
    return path


@contextmanager
def detection_of(architecture: Architecture) -> Iterator[None]:
    """Inside it ComfyUI's detection finds the tiny sizes where it would insist on those of the released model."""
    import comfy.model_detection
    import comfy.supported_models

    if not architecture.forced:
        yield
        return
    detect, z_image = comfy.model_detection.detect_unet_config, comfy.supported_models.ZImage.unet_config

    def tiny(state_dict: dict, key_prefix: str, metadata: dict | None = None) -> dict | None:
        found = detect(state_dict, key_prefix, metadata=metadata)
        return found if found is None else found | _config(architecture)

    comfy.model_detection.detect_unet_config = tiny
    comfy.supported_models.ZImage.unet_config = {"image_model": "lumina2", "dim": _Z_IMAGE["dim"]}
    try:
        yield
    finally:
        comfy.model_detection.detect_unet_config, comfy.supported_models.ZImage.unet_config = detect, z_image


def prompt(architecture: Architecture, seed: int, tokens: int = TOKENS) -> list:
    """A prompt's conditioning in the form CLIPTextEncode gives it: [[text, options]]."""
    generator = torch.Generator("cpu").manual_seed(seed)
    padded = architecture.mask == "padded"
    length = TOKENS if padded else tokens
    options = {"pooled_output": None, **architecture.plain}
    if architecture.pooled:
        options["pooled_output"] = torch.randn(1, architecture.pooled, generator=generator)
    if architecture.mask:
        options["attention_mask"] = (torch.arange(length) < tokens).long()[None]
    if architecture.llama:
        options["conditioning_llama3"] = torch.randn(1, architecture.llama, length, architecture.width, generator=generator)
    return [[torch.randn(1, length, architecture.width, generator=generator), options]]
