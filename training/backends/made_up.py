"""A made-up prompt and state for a model, where there is no artist to give real ones: for the self-check from a command line.

What a text encoder hands over differs from model to model: how wide a token is, whether there is a pooled vector, a
mask, a second encoder. The widths are read from the network's own layers.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 77


@dataclass(frozen=True)
class TextEncoder:
    """What the text encoders of one architecture hand over. Layers are given by their path in the network."""

    text: str
    """The layer that takes the tokens."""
    pooled: str = ""
    """The layer that takes the pooled text; empty = none."""
    mask: bool = False
    llama: bool = False
    """Whether the states of all layers of a second encoder come along."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further values of a conditioning entry."""
    pixels: int = 8
    """Pixels an edge of one latent pixel, where ComfyUI does not say so itself."""


TEXT_ENCODERS = {
    "SD3": TextEncoder("context_embedder", pooled="y_embedder.mlp.0"),
    "AuraFlow": TextEncoder("cond_seq_linear"),
    "Flux": TextEncoder("txt_in", pooled="vector_in.in_layer", options={"guidance": 3.5}),
    "Flux2": TextEncoder("txt_in", options={"guidance": 4.0}, pixels=16),
    "Chroma": TextEncoder("txt_in"),
    "Lumina2": TextEncoder("cap_embedder.1", mask=True),
    "QwenImage": TextEncoder("txt_in"),
    "HiDream": TextEncoder("caption_projection.0.linear", pooled="p_embedder.pooled_embedder.linear_1", llama=True),
    "WAN21": TextEncoder("text_embedding.0"),
    "WAN22": TextEncoder("text_embedding.0", pixels=16),
    "HunyuanVideo": TextEncoder("txt_in.input_embedder", pooled="vector_in.in_layer", options={"guidance": 6.0}),
    "HunyuanImage21": TextEncoder("txt_in.input_embedder", pixels=32),
    "Omnigen2": TextEncoder("time_caption_embed.caption_embedder.1", mask=True),
    "LTXV": TextEncoder("caption_projection.linear_1", mask=True, pixels=32),
    "Kandinsky5": TextEncoder("text_embeddings.in_layer", pooled="pooled_text_embeddings.in_layer"),
}


def text_encoder(model: Any) -> TextEncoder:
    """The entry of the model's class or of the nearest class it derives from; a ``ValueError`` where there is none."""
    for kind in type(model).__mro__:
        if kind.__name__ in TEXT_ENCODERS:
            return TEXT_ENCODERS[kind.__name__]
    raise ValueError(
        f"nothing is known about the prompts of {type(model).__name__}, so none can be made up here. Start a run with it in ComfyUI: the trainer makes the same check on your own prompts before the first update."
    )


def made_up_prompt(model: Any, seed: int = 0, tokens: int = TOKENS) -> list:
    """Conditioning entries as ComfyUI's CLIPTextEncode gives them, from random numbers."""
    known, network = text_encoder(model), model.diffusion_model
    generator = torch.Generator("cpu").manual_seed(seed)
    noise = lambda *shape: torch.randn(shape, generator=generator)
    width = _inputs(network, known.text)
    options: dict[str, Any] = {"pooled_output": noise(1, _inputs(network, known.pooled)) if known.pooled and _has(network, known.pooled) else None}
    if known.mask:
        options["attention_mask"] = torch.ones(1, tokens, dtype=torch.long)
    if known.llama:
        options["conditioning_llama3"] = noise(1, len(network.llama_layers), tokens, width)
    return [[noise(1, tokens, width), {**options, **known.options}]]


def made_up_states(model: Any, rows: int, size: int, seed: int = 0) -> Tensor:
    """(rows, ...) random latents of pictures of ``size`` pixels an edge; of a video model a single frame."""
    form = model.latent_format
    edge = max(2, size // getattr(form, "spacial_downscale_ratio", text_encoder(model).pixels))
    frames = [1] if form.latent_dimensions == 3 else []
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn([rows, form.latent_channels, *frames, edge, edge], generator=generator)


def _has(network: nn.Module, path: str) -> bool:
    return any(name == path for name, _ in network.named_modules())


def _inputs(network: nn.Module, path: str) -> int:
    layer = network.get_submodule(path)
    return layer.in_features if hasattr(layer, "in_features") else layer.weight.shape[1]
