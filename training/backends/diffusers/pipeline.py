"""What the pipeline around the network does: prompts to conditioning, latents to pictures, times of its scheduler."""

import inspect
from typing import Any

import torch
from torch import Tensor

from .architectures import Architecture

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")


@torch.no_grad()
def encode(pipeline: Any, architecture: Architecture, text: str, device: torch.device) -> list:
    """One prompt's conditioning, on the CPU."""
    # [[text (1, T, D), {"pooled": (1, P)} where the architecture has it]]
    found = ENCODE[architecture.name](pipeline, text, device)
    return [[found[0].cpu(), {name: value.cpu() for name, value in zip(("pooled",), found[1:])}]]


def _stable_diffusion_3(pipeline: Any, text: str, device: torch.device) -> tuple[Tensor, ...]:
    embeds, _, pooled, _ = pipeline.encode_prompt(text, None, None, device=device, do_classifier_free_guidance=False)
    return embeds, pooled


def _flux(pipeline: Any, text: str, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(pipeline.encode_prompt(text, None, device=device)[:2])


def _qwen_image(pipeline: Any, text: str, device: torch.device) -> tuple[Tensor, ...]:
    embeds, mask = pipeline.encode_prompt(text, device=device)
    return (embeds if mask is None else embeds[:, mask[0].bool()],)


def _z_image(pipeline: Any, text: str, device: torch.device) -> tuple[Tensor, ...]:
    (embeds,), _ = pipeline.encode_prompt([text], device=device, do_classifier_free_guidance=False)
    return (embeds[None],)


def _wan(pipeline: Any, text: str, device: torch.device) -> tuple[Tensor, ...]:
    return (pipeline.encode_prompt(text, do_classifier_free_guidance=False, max_sequence_length=512, device=device)[0],)


ENCODE = {"sd3": _stable_diffusion_3, "flux": _flux, "qwen_image": _qwen_image, "z_image": _z_image, "wan": _wan}


def move_encoders(pipeline: Any, device: torch.device | None) -> None:
    """Put the text encoders on a device; None drops them."""
    for name, part in pipeline.components.items():
        if name in ENCODERS and part is not None:
            pipeline.register_modules(**{name: None if device is None else part.to(device)})


def latent_shape(pipeline: Any, architecture: Architecture, width: int, height: int, frames: int) -> tuple[int, ...]:
    """Of one latent (C, H, W) or (C, F, H, W) for pictures of so many pixels and frames."""
    scale = pipeline.vae_scale_factor_spatial if architecture.name == "wan" else pipeline.vae_scale_factor
    for name, value in (("width", width), ("height", height)):
        if value < 2 * scale or value % (2 * scale):
            raise ValueError(f"{name} must be a multiple of {2 * scale} for this model; got {value}")
    if frames != 1 and architecture.name != "wan":
        raise ValueError(f"frames must be 1: {architecture.name} makes single pictures; got {frames}")
    channels = pipeline.transformer.config.in_channels // (4 if architecture.packed else 1)
    time = ((frames - 1) // getattr(pipeline, "vae_scale_factor_temporal", 4) + 1,) if architecture.frames else ()
    return (channels, *time, height // scale, width // scale)


def time_grid(pipeline: Any, steps: int, shape: tuple[int, ...], shift: float | None) -> list[float]:
    """``steps`` + 1 times from 1 to 0: shifted by ``shift``, or as the pipeline's own scheduler has them."""
    scheduler, even = pipeline.scheduler, [1 - k / steps for k in range(steps)]
    if shift is None and "sigmas" in inspect.signature(scheduler.set_timesteps).parameters and "shift" in scheduler.config:
        options = {"mu": _dynamic_shift(scheduler.config, shape)} if scheduler.config.use_dynamic_shifting else {}
        scheduler.set_timesteps(sigmas=even, **options)
        return scheduler.sigmas.tolist()
    shift = shift or scheduler.config.get("flow_shift") or 1.0
    return [shift * t / (1 + (shift - 1) * t) for t in even] + [0.0]


def _dynamic_shift(config: Any, shape: tuple[int, ...]) -> float:
    """diffusers' mu: linear in the number of 2 x 2 patches, between the scheduler's two given points."""
    tokens = shape[-1] * shape[-2] // 4
    low, high = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    first, last = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    return first + (last - first) * (tokens - low) / (high - low)


class VaeDecoder:
    """latents (N, ...) -> pictures (N, H, W, 3) in [0, 1], of the first frame where there are several."""

    def __init__(self, pipeline: Any, architecture: Architecture) -> None:
        self._vae, self._frames = pipeline.vae, architecture.frames

    @torch.no_grad()
    def __call__(self, latents: Tensor) -> Tensor:
        return torch.cat([self._decode(one) for one in latents.split(1)])

    def _decode(self, latents: Tensor) -> Tensor:
        config, parameter = self._vae.config, next(self._vae.parameters())
        latents = latents.to(parameter.device, parameter.dtype)
        if self._frames:
            mean, std = (torch.tensor(values).to(latents).reshape(1, -1, 1, 1, 1) for values in (config.latents_mean, config.latents_std))
            images = self._vae.decode(latents[:, :, :1] * std + mean, return_dict=False)[0][:, :, 0]
        else:
            images = self._vae.decode(latents / config.scaling_factor + config.shift_factor, return_dict=False)[0]
        return (images.float() / 2 + 0.5).clamp(0, 1).movedim(1, -1)
