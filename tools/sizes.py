"""The released models' sizes as data: what ComfyUI's detection reads from their files, and what they are usually trained on.

Text: tokens of a prompt as its text encoder hands them over. Latents: shape of one, by resolution in pixels; of videos
33 frames of 480 x 320.
"""

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Size:
    model: str
    """Class in comfy.supported_models."""
    config: dict[str, Any]
    latents: dict[str, tuple[int, ...]]
    tokens: int
    newer: dict[str, Any] = field(default_factory=dict)
    """What the constructor of newer ComfyUI wants besides."""


def _squares(channels: int, factor: int, *frame: int) -> dict[str, tuple[int, ...]]:
    return {str(side): (channels, *frame, side // factor, side // factor) for side in (512, 1024)}


_VIDEO = {"33 frames of 480 x 320": (16, 9, 40, 60)}
_TXT_IDS = {"txt_ids_dims": []}
_SUM = {"meanflow_sum": False}


def _sd3(depth: int, most: int, doubled: list[int]) -> dict[str, Any]:
    return dict(
        input_size=None, patch_size=2, in_channels=16, out_channels=16, depth=depth, num_patches=most**2, pos_embed_max_size=most, adm_in_channels=2048,
        context_embedder_config={"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 64 * depth}},
        qk_norm="rms", x_block_self_attn_layers=doubled, pos_embed_scaling_factor=None,
    )  # fmt: skip


_FLUX = dict(
    in_channels=16, out_channels=16, vec_in_dim=768, context_in_dim=4096, hidden_size=3072, mlp_ratio=4.0, num_heads=24, depth=19,
    depth_single_blocks=38, axes_dim=[16, 56, 56], theta=10000, patch_size=2, qkv_bias=True, guidance_embed=True,
)  # fmt: skip
_FLUX2 = dict(
    _FLUX, in_channels=128, out_channels=128, vec_in_dim=None, context_in_dim=15360, hidden_size=6144, mlp_ratio=3.0, num_heads=48, depth=8,
    depth_single_blocks=48, axes_dim=[32, 32, 32, 32], theta=2000, patch_size=1, qkv_bias=False, global_modulation=True, mlp_silu_act=True,
    ops_bias=False, default_ref_method="index", ref_index_scale=10.0,
)  # fmt: skip
_CHROMA = dict(
    {key: value for key, value in _FLUX.items() if key not in ("vec_in_dim", "guidance_embed")},
    in_channels=64, out_channels=64, in_dim=64, out_dim=3072, hidden_dim=5120, n_layers=5,
)  # fmt: skip
_LUMINA2 = dict(
    patch_size=2, in_channels=16, dim=2304, cap_feat_dim=2304, n_layers=26, qk_norm=True, n_heads=24, n_kv_heads=8, axes_dims=[32, 32, 32],
    axes_lens=[300, 512, 512], rope_theta=10000.0, ffn_dim_multiplier=4.0,
)  # fmt: skip
_Z_IMAGE = dict(
    _LUMINA2, dim=3840, cap_feat_dim=2560, n_layers=30, n_heads=30, n_kv_heads=30, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512],
    rope_theta=256.0, ffn_dim_multiplier=8 / 3, z_image_modulation=True, time_scale=1000.0, pad_tokens_multiple=32,
)  # fmt: skip
_HIDREAM = dict(
    patch_size=2, in_channels=16, out_channels=16, num_layers=16, num_single_layers=32, attention_head_dim=128, num_attention_heads=20,
    caption_channels=[4096, 4096], text_emb_dim=2048, num_routed_experts=4, num_activated_experts=2, axes_dims_rope=[64, 32, 32],
    max_resolution=[128, 128], llama_layers=[*range(32), *[31] * 16],
)  # fmt: skip
_WAN = dict(
    model_type="t2v", patch_size=(1, 2, 2), in_dim=16, out_dim=16, freq_dim=256, window_size=(-1, -1), qk_norm=True, cross_attn_norm=True, eps=1e-6,
)  # fmt: skip
_HUNYUAN = dict(
    in_channels=16, patch_size=[1, 2, 2], out_channels=16, vec_in_dim=768, axes_dim=[16, 56, 56], meanflow=False, context_in_dim=4096,
    hidden_size=3072, mlp_ratio=4.0, num_heads=24, depth=20, depth_single_blocks=40, theta=256, qkv_bias=True, byt5=False, guidance_embed=True,
    use_cond_type_embedding=False, vision_in_dim=None,
)  # fmt: skip
_HUNYUAN_IMAGE = dict(
    _HUNYUAN, in_channels=64, out_channels=64, patch_size=[1, 1], axes_dim=[64, 64], vec_in_dim=None, context_in_dim=3584, hidden_size=3584,
    num_heads=28, byt5=True, guidance_embed=False,
)  # fmt: skip
_OMNIGEN2 = dict(
    patch_size=2, in_channels=16, out_channels=None, hidden_size=2520, num_layers=32, num_refiner_layers=2, num_attention_heads=21,
    num_kv_heads=7, multiple_of=256, ffn_dim_multiplier=None, norm_eps=1e-5, axes_dim_rope=[40, 40, 40], axes_lens=[1024, 1664, 1664],
    text_feat_dim=2048, timestep_scale=1000.0,
)  # fmt: skip
_LTXV = dict(in_channels=128, cross_attention_dim=2048, attention_head_dim=64, num_attention_heads=32, caption_channels=4096, num_layers=28)
_AURAFLOW = dict(max_seq=9216, cond_seq_dim=2048, n_double_layers=4, n_layers=36, dim=3072, n_heads=12, global_conddim=3072)

SIZES = {
    "SD3.5 Medium": Size("SD3", _sd3(24, 384, list(range(13))), _squares(16, 8), 154),
    "SD3.5 Large": Size("SD3", _sd3(38, 192, []), _squares(16, 8), 154),
    "Flux.1 dev": Size("Flux", _FLUX, _squares(16, 8), 256, newer=_TXT_IDS),
    "Flux.2 dev": Size("Flux2", _FLUX2, _squares(128, 16), 512, newer={"txt_ids_dims": [3]}),
    "Chroma": Size("Chroma", _CHROMA, _squares(16, 8), 256, newer=_TXT_IDS | {"vec_in_dim": None}),
    "AuraFlow": Size("AuraFlow", _AURAFLOW, _squares(4, 8), 256),
    "Lumina2": Size("Lumina2", _LUMINA2, _squares(16, 8), 256),
    "Z-Image": Size("ZImage", _Z_IMAGE, _squares(16, 8), 256),
    "Qwen-Image": Size("QwenImage", dict(in_channels=64, num_layers=60), _squares(16, 8, 1), 256),
    "HiDream": Size("HiDream", _HIDREAM, _squares(16, 8), 128),
    "Wan 2.1 1.3B": Size("WAN21_T2V", _WAN | dict(dim=1536, ffn_dim=8960, num_heads=12, num_layers=30), _VIDEO, 512),
    "Wan 2.1 14B": Size("WAN21_T2V", _WAN | dict(dim=5120, ffn_dim=13824, num_heads=40, num_layers=40), _VIDEO, 512),
    "HunyuanVideo": Size("HunyuanVideo", _HUNYUAN, _VIDEO, 256, newer=_SUM),
    "HunyuanImage 2.1": Size("HunyuanImage21", _HUNYUAN_IMAGE, _squares(64, 32), 256, newer=_SUM),
    "Omnigen2": Size("Omnigen2", _OMNIGEN2, _squares(16, 8), 256),
    "LTXV": Size("LTXV", _LTXV, {"33 frames of 480 x 320": (128, 5, 10, 15)}, 128),
}


def _small(name: str, **config: Any) -> Size:
    """A tiny one of the same architecture, for a machine without a graphics card."""
    size = SIZES[name]
    latent = next(iter(size.latents.values()))
    return replace(size, config=size.config | config, latents={"64": (*latent[:-2], 8, 8)}, tokens=8)


SMALL = {
    "SD3.5 Medium": _small("SD3.5 Medium", depth=2, x_block_self_attn_layers=[0], context_embedder_config={"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 128}}),
    "Flux.1 dev": _small("Flux.1 dev", hidden_size=32, num_heads=2, depth=1, depth_single_blocks=1, axes_dim=[4, 6, 6]),
    "Qwen-Image": _small("Qwen-Image", num_layers=1, attention_head_dim=16, num_attention_heads=2, axes_dims_rope=(4, 6, 6)),
}
# Activations far outweigh weights: 1024 picture tokens through a narrow network.
ACTIVATIONS = replace(SIZES["SD3.5 Medium"], config=_sd3(12, 64, []), latents={"512": (16, 64, 64)})
