"""What differs between the networks: how each is asked for the velocity, and how its layers are named for others."""

# States are latents (N, C, H, W), with a frame axis (N, C, F, H, W) for Qwen-Image and Wan, as in ComfyUI. The order of
# arguments, scales of time and signs are those of diffusers' own pipelines.

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# predict(network, x, t (N,) in [0, 1], text, options, guidance) -> the network's velocity, as x
Predict = Callable[[nn.Module, Tensor, Tensor, Any, dict[str, Any], float], Tensor]


@dataclass(frozen=True)
class Architecture:
    name: str
    pipeline: str
    """Class of the pipeline in model_index.json."""
    network: str
    """Class of its transformer."""
    model: str
    """ComfyUI's class of the model, for the metadata of version files."""
    predict: Predict
    frames: bool = False
    """Whether latents have a frame axis."""
    packed: bool = False
    """Whether the network's channels are those of 2 x 2 patches."""
    prefix: str = "diffusion_model."
    """How keys begin that ComfyUI's loaders know."""
    rename: tuple[tuple[str, str], ...] = ()
    """(pattern, replacement) from diffusers' module paths to ComfyUI's, where it does not know diffusers' own."""
    guide: Callable[[Tensor, Tensor, float], Tensor] = lambda positive, negative, cfg: negative + cfg * (positive - negative)

    def file_name(self, path: str) -> str:
        """The name of a module's LoRA tensor in a version file, without the prefix."""
        for pattern, replacement in self.rename:
            path = re.sub(pattern, replacement, path)
        return path


def _stable_diffusion_3(network: nn.Module, x: Tensor, t: Tensor, text: Tensor, options: dict[str, Any], guidance: float) -> Tensor:
    return network(hidden_states=x, timestep=1000 * t, encoder_hidden_states=text, pooled_projections=options["pooled"], return_dict=False)[0]


def _flux(network: nn.Module, x: Tensor, t: Tensor, text: Tensor, options: dict[str, Any], guidance: float) -> Tensor:
    height, width = x.shape[2] // 2, x.shape[3] // 2
    places = torch.cartesian_prod(torch.zeros(1), torch.arange(height).float(), torch.arange(width).float()).to(x.device)
    out = network(
        hidden_states=pack(x),
        timestep=t,
        guidance=torch.full_like(t, guidance) if network.config.guidance_embeds else None,
        pooled_projections=options["pooled"],
        encoder_hidden_states=text,
        txt_ids=torch.zeros(text.shape[1], 3, device=x.device),
        img_ids=places,
        return_dict=False,
    )[0]
    return unpack(out, height, width)


def _qwen_image(network: nn.Module, x: Tensor, t: Tensor, text: Tensor, options: dict[str, Any], guidance: float) -> Tensor:
    height, width = x.shape[3] // 2, x.shape[4] // 2
    out = network(
        hidden_states=pack(x.squeeze(2)),
        timestep=t,
        guidance=torch.full_like(t, guidance) if network.config.guidance_embeds else None,
        encoder_hidden_states=text,
        img_shapes=[[(1, height, width)]] * len(x),
        return_dict=False,
    )[0]
    return unpack(out, height, width).unsqueeze(2)


def _guide_qwen_image(positive: Tensor, negative: Tensor, cfg: float) -> Tensor:
    """Guidance that keeps the length of each patch's velocity, as diffusers has it. ComfyUI's sampler does not do this."""
    height, width = positive.shape[3] // 2, positive.shape[4] // 2
    guided = pack((negative + cfg * (positive - negative)).squeeze(2))
    wanted = pack(positive.squeeze(2)).norm(dim=-1, keepdim=True)
    return unpack(guided * (wanted / guided.norm(dim=-1, keepdim=True)), height, width).unsqueeze(2)


def _z_image(network: nn.Module, x: Tensor, t: Tensor, text: Tensor, options: dict[str, Any], guidance: float) -> Tensor:
    """Its time runs from 0 (noise) to 1, it points from noise to picture, and it takes one tensor a picture."""
    out = network(list(x.unsqueeze(2).unbind()), 1 - t, list(text.unbind()), return_dict=False)[0]
    return -torch.stack(out).squeeze(2)


def _wan(network: nn.Module, x: Tensor, t: Tensor, text: Tensor, options: dict[str, Any], guidance: float) -> Tensor:
    return network(hidden_states=x, timestep=1000 * t, encoder_hidden_states=text, return_dict=False)[0]


def pack(x: Tensor) -> Tensor:
    """(N, C, 2 h, 2 w) -> (N, h w, 4 C)."""
    n, channels, height, width = x.shape
    return x.reshape(n, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, height * width // 4, channels * 4)


def unpack(x: Tensor, height: int, width: int) -> Tensor:
    """(N, h w, 4 C) -> (N, C, 2 h, 2 w)."""
    return x.reshape(len(x), height, width, -1, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(len(x), -1, 2 * height, 2 * width)


_WAN_NAMES = (
    (r"\.attn1\.", ".self_attn."),
    (r"\.attn2\.", ".cross_attn."),
    (r"_attn\.to_([qkv])\.", r"_attn.\1."),
    (r"_attn\.to_out\.0\.", "_attn.o."),
    (r"\.ffn\.net\.0\.proj\.", ".ffn.0."),
    (r"\.ffn\.net\.2\.", ".ffn.2."),
    (r"^condition_embedder\.time_embedder\.linear_1\.", "time_embedding.0."),
    (r"^condition_embedder\.time_embedder\.linear_2\.", "time_embedding.2."),
    (r"^condition_embedder\.time_proj\.", "time_projection.1."),
    (r"^condition_embedder\.text_embedder\.linear_1\.", "text_embedding.0."),
    (r"^condition_embedder\.text_embedder\.linear_2\.", "text_embedding.2."),
    (r"^proj_out\.", "head.head."),
)

ARCHITECTURES = {
    each.name: each
    for each in (
        Architecture("sd3", "StableDiffusion3Pipeline", "SD3Transformer2DModel", "SD3", _stable_diffusion_3, prefix="transformer."),
        Architecture("flux", "FluxPipeline", "FluxTransformer2DModel", "Flux", _flux, packed=True, prefix="transformer."),
        Architecture("qwen_image", "QwenImagePipeline", "QwenImageTransformer2DModel", "QwenImage", _qwen_image, frames=True, packed=True, guide=_guide_qwen_image),
        Architecture("z_image", "ZImagePipeline", "ZImageTransformer2DModel", "ZImage", _z_image),
        Architecture("wan", "WanPipeline", "WanTransformer3DModel", "WAN21", _wan, frames=True, rename=_WAN_NAMES),
    )
}
