"""LoRAs that the graph already had on the base model, below the one that is trained."""

import math
import re
from collections.abc import Callable
from typing import Any

import comfy.lora
import comfy.lora_convert
import comfy.model_patcher
import comfy.sd
import comfy.utils
import folder_paths
from comfy.weight_adapter import LoRAAdapter

from ..base import LORA_KIND, Unfit

BASE_LAYER = "base_layer"  # where PEFT puts the layer that got a LoRA
_TEXT_ENCODER = r"lora_(prior_)?te\d*_|text_encoder|te\d?[._]"
# Where the name of a layer ends and that of its tensor begins, in every form that ComfyUI's loader reads.
_TENSOR = r"_lora\.|\.(lora[._]|lokr_|hada_|oft_|[ab][12]\.)"
_WHOLE = ("alpha", "dora_scale", "diff", "diff_b", "w_norm", "b_norm", "rescale", "reshape_weight", "set_weight", "weight", "bias")


def is_text_encoder(key: str) -> bool:
    """Whether a tensor of a LoRA file belongs to a text encoder."""
    return re.match(_TEXT_ENCODER, key) is not None


def put_loras(patcher: Any, loras: list[dict[str, Any]]) -> Any:
    """A clone of ``patcher`` with the LoRAs of a base description, each at its strength, by ComfyUI's stock loader.

    A LoRA whose file is gone, or that was made for another model, is a ``ValueError``.
    """
    for lora in loras:
        path = folder_paths.get_full_path(LORA_KIND, lora["name"])
        if path is None:
            raise ValueError(f"the LoRA {lora['name']!r} is no longer in ComfyUI's {LORA_KIND!r} folders; put it back")
        tensors = comfy.utils.load_torch_file(path, safe_load=True)
        check_fit(patcher, lora["name"], tensors)
        patcher = comfy.sd.load_lora_for_models(patcher, None, tensors, lora["strength"], 0)[0]
    return patcher


def check_fit(patcher: Any, name: str, tensors: dict[str, Any]) -> None:
    """``Unfit`` unless every layer of a LoRA file exists in the model, in its size. Layers of text encoders do not count."""
    tensors = comfy.lora_convert.convert_lora(tensors)
    key_map = comfy.lora.model_lora_keys_unet(patcher.model, {})
    patches = comfy.lora.load_lora(dict(tensors), key_map, log_missing=False)
    layers = {_layer(key, key_map) for key in tensors if not is_text_encoder(key)}
    known = {layer for layer in layers if _fits(patcher.model, key_map.get(layer), patches)}
    if len(known) == len(layers) > 0:
        return
    model = type(patcher.model).__name__
    if not known:
        raise Unfit(f"the LoRA {name!r} does not fit this model ({model}): none of its layers exist there, or not in that size; take it out, or use the model it was made for")
    missing = ", ".join(sorted(layers - known)[:3])
    raise Unfit(f"the LoRA {name!r} fits this model ({model}) only in {len(known)} of {len(layers)} layers, not in {missing}; take it out, or use the model it was made for")


def _layer(key: str, known: dict[str, Any]) -> str:
    """The layer that a tensor of a LoRA file belongs to, under the file's own name for it."""
    parts = key.split(".")
    for end in range(len(parts) - 1, 0, -1):
        layer = ".".join(parts[:end])
        for candidate in (layer, layer.removesuffix("_lora")):
            if candidate in known:
                return candidate
    layer = re.split(_TENSOR, key, maxsplit=1)[0]
    return ".".join(parts[:-1]) if layer == key and parts[-1] in _WHOLE else layer


def _fits(model: Any, weight: Any, patches: dict[Any, Any]) -> bool:
    """Whether a layer's patch was read from the file and has the size of the model's weight: ComfyUI logs a wrong size and goes on."""
    if weight not in patches:
        return isinstance(weight, str) and f"{weight.removesuffix('.weight')}.bias" in patches
    patch, (key, part) = patches[weight], (weight, None) if isinstance(weight, str) else weight[:2]
    if not isinstance(patch, LoRAAdapter) or any(extra is not None for extra in (patch.weights[3], patch.weights[5])):
        return True  # other kinds of adapter, and LoRAs with a middle or that enlarge the weight
    shape = list(comfy.utils.get_attr(model, key).shape)
    if part is not None:
        shape[part[0]] = part[2]
    up, down = (matrix.flatten(1).shape for matrix in patch.weights[:2])
    return up[1] == down[0] and up[0] * down[1] == math.prod(shape)


def follow_layers(patcher: Any) -> None:
    """Rename the patches of layers that became LoRA layers, whose own weight has moved to ``<layer>.base_layer.weight``.

    ComfyUI drops a patch whose key the model no longer has, without a word: the trainer would train on another base.
    Call it after the LoRA layers are in and before the model is loaded to its device.
    """
    if patcher.backup:
        raise RuntimeError("this model's LoRAs are already merged into its weights; stacked LoRAs need a freshly loaded model")
    known = patcher.model.state_dict().keys()
    patcher.patches = {_moved(key, known): value for key, value in patcher.patches.items()}
    _round_as_before()


def _round_as_before() -> None:
    """ComfyUI rounds a LoRA into fp8 weights at random, by a seed it makes of the weight's name: here of the name that the graph knows."""
    home = comfy.utils if hasattr(comfy.utils, "string_to_seed") else comfy.model_patcher
    seed_of = home.string_to_seed
    if not isinstance(seed_of, _SeedOfLayer):
        home.string_to_seed = _SeedOfLayer(seed_of)


class _SeedOfLayer:
    def __init__(self, seed_of: Callable[[str], int]) -> None:
        self._seed_of = seed_of

    def __call__(self, name: str) -> int:
        return self._seed_of(name.replace(f".{BASE_LAYER}.", "."))


def _moved(key: str, known: Any) -> str:
    layer, _, kind = key.rpartition(".")
    for candidate in (key, f"{layer}.{BASE_LAYER}.{kind}"):
        if candidate in known:
            return candidate
    raise ValueError(f"a LoRA below the trained one changes {key!r}, which this model does not have")
