"""Diffusers' names of ComfyUI's layers, read backwards from the map with which ComfyUI loads the LoRAs that diffusers wrote."""

# ruff: noqa: I001 - loading comes first: it lets ComfyUI read its command line before any other import of comfy

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .loading import class_of, find_base, load_base

import comfy.lora
import comfy.model_detection
import comfy.utils
import safetensors
import torch
from torch import Tensor

from ..lora import PREFIX

# Classes of ComfyUI's models whose names were compared with diffusers' own models (tests/training/test_export.py). Of
# the others most have no such names, or those of yet another program (HunyuanVideo).
KNOWN = ("AuraFlow", "Chroma", "Flux", "Flux2", "HiDream", "Kandinsky5", "QwenImage", "SD3", "ZImage")


@dataclass(frozen=True)
class Part:
    """A layer of diffusers that is a layer of ComfyUI, or some of its rows."""

    name: str
    rows: slice
    order: Callable[[Tensor], Tensor] | None
    """Brings the rows from ComfyUI's order into that of diffusers and back: it swaps two halves."""


def parts_of(model: Any, sizes: dict[str, int]) -> dict[str, list[Part]]:
    """The layers of diffusers that make up each layer in ``sizes`` (output features by ComfyUI's path) of ComfyUI's ``model``.

    ``ValueError`` where the model, or a layer, has no name in diffusers.
    """
    kind = class_of(model)
    if kind not in KNOWN:
        raise ValueError(f"diffusers' names are not known for models of the kind {kind}; ComfyUI's own layout is the only one: use the version file as it is")
    key_map = comfy.lora.model_lora_keys_unet(model, {})
    # Older ComfyUI lists Z-Image's under its own prefix.
    prefix = "transformer." if any(name.startswith("transformer.") for name in key_map) else PREFIX
    found: dict[str, list[Part]] = {}
    for name, target in key_map.items():
        key, offset, order = (*target, None, None)[:3] if isinstance(target, tuple) else (target, None, None)
        layer = key.removeprefix(PREFIX).removesuffix(".weight")
        if layer in sizes and name.startswith(prefix):
            rows = slice(offset[1], offset[1] + offset[2]) if offset else slice(0, sizes[layer])
            found.setdefault(layer, []).append(Part(name.removeprefix(prefix), rows, order))
    return {layer: _chosen(layer, found.get(layer, []), size, kind) for layer, size in sizes.items()}


def _chosen(layer: str, parts: list[Part], size: int, kind: str) -> list[Part]:
    """Of all names of one layer those of diffusers: of separate parts if these make up the whole layer, else of the layer itself."""
    whole = [part for part in parts if part.rows == slice(0, size)]
    split = sorted((part for part in parts if part.rows != slice(0, size)), key=lambda part: part.rows.start)
    edges = [0, *(part.rows.stop for part in split)]
    if split and edges[-1] == size and all(part.rows.start == edge for part, edge in zip(split, edges)):
        return split
    renamed = [part for part in whole if part.name != layer] or whole
    if not renamed:
        raise ValueError(f"the layer {layer!r} has no name in diffusers' layout; ComfyUI's own layout is the only one for this LoRA: use the version file as it is")
    return [renamed[-1 if kind == "Flux2" else 0]]  # Flux.2's names stand behind those of Flux.1


def skeleton(base: dict[str, Any]) -> Any:
    """ComfyUI's model of a job's base without its weights, from the header of its file; other files are loaded whole."""
    path = find_base(base)
    if path is not None and path.suffix == ".safetensors":
        with safetensors.safe_open(path, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - not a dict
            metadata = file.metadata()
        tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        prefix = comfy.model_detection.unet_prefix_from_state_dict(tensors)
        inner = comfy.utils.state_dict_prefix_replace(tensors, {prefix: ""}, filter_keys=True)
        config = comfy.model_detection.model_config_from_unet(inner or tensors, "", metadata=metadata)
        if config is not None:
            config.set_inference_dtype(torch.float32, None)
            return config.get_model({}, "", device=torch.device("meta"))
    return load_base(base).model
