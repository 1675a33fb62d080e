"""The LoRA on a module, by PEFT: inject, read, write, and the file that other programs load.

The file has the keys that are native to ComfyUI, and alpha among them: without it a loader would apply the LoRA at the
scale 1 instead of alpha / rank, silently.
"""

# Keys: diffusion_model.<module path>.lora_A.weight, .lora_B.weight and .alpha; transformer.<...> for some diffusers models

import json
import re
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from .base import Unfit
from .config import Job
from .metadata import metadata

PREFIX = "diffusion_model."
PREFIXES = (PREFIX, "transformer.")
ADAPTER = "default"
# Flux, Flux.2, Chroma and Hunyuan fuse attention and MLP of their single blocks, most of the network, into two layers.
# diffusers has them apart, but for proj_out, the output of both.
_SINGLE = r"(.*\.)?single_(transformer_)?blocks"
_ATTENTION = rf"(.*\.)?[^.]*(attn|attention)[^.]*\..*|{_SINGLE}\.\d+\.(linear[12]|proj_out)"
# Inside a numbered block only: embedders of time and text have an mlp too.
_FEED_FORWARD = r"(img_|txt_)?mlp[CX]?|ff(_[it]|_context)?|ffn|feed_forward"
TOKENS = r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|."  # of a regular expression: an escape, a class, any other character
TARGETS = {
    "attention": _ATTENTION,
    "attention_mlp": rf"{_ATTENTION}|.*\.\d+\.(.*\.)?({_FEED_FORWARD})\..*|.*\.\d+\.proj_mlp",
    "all": r".*",
}


def target_layers(module: nn.Module, targets: str, pattern: str = "") -> list[str]:
    """Paths of the Linear layers that get a LoRA, sorted: those that ``pattern`` matches whole, without one those of the preset ``targets``."""
    if pattern:
        return _layers_by_pattern(module, pattern)
    if targets not in TARGETS:
        raise Unfit(f"targets must be one of {', '.join(TARGETS)}; got {targets!r}")
    names = [name for name, layer in module.named_modules() if is_linear(layer) and re.fullmatch(TARGETS[targets], name)]
    if not names:
        raise Unfit(f"this model has no linear layer that the targets {targets!r} mean")
    return sorted(names)


def check_pattern(pattern: str) -> None:
    """``Unfit`` where the pattern is no regular expression."""
    try:
        re.fullmatch(pattern, "")
    except re.error as error:
        raise Unfit(f"target_pattern {pattern!r} is not a regular expression: {error}") from None
    if _may_never_end(pattern):
        raise Unfit(f"target_pattern {pattern!r} repeats a group that has a repeat or a choice in it, which can take for ever; write it without the outer repeat")


def _may_never_end(pattern: str) -> bool:
    """Whether a repeated group has a repeat or a choice inside: matching may then take time exponential in a path's length."""
    tokens = re.findall(TOKENS, pattern)
    groups = [False]  # for each open group whether it has a repeat or a choice so far
    for token, following in zip(tokens, [*tokens[1:], ""]):
        if token == "(":
            groups.append(False)
        elif token == ")":
            inside = groups.pop() if len(groups) > 1 else False
            if inside and following in ("*", "+", "{"):
                return True
            groups[-1] = groups[-1] or inside
        elif token in ("*", "+", "{", "|"):
            groups[-1] = True
    return False


def _layers_by_pattern(module: nn.Module, pattern: str) -> list[str]:
    check_pattern(pattern)
    linear = sorted(name for name, layer in module.named_modules() if is_linear(layer))
    names = [name for name in linear if re.fullmatch(pattern, name)]
    if not names:
        others = [name for name, _ in module.named_modules() if name and re.fullmatch(pattern, name)]
        found = f"matches no linear layer, only {', '.join(others[:2])}" if others else "matches no layer"
        examples = ", ".join(linear[:: max(1, len(linear) // 3)][:3])
        raise Unfit(f"target_pattern {pattern!r} {found} of this model. It must match whole paths of linear layers, such as {examples}")
    return names


def is_linear(layer: nn.Module) -> bool:
    """Also ComfyUI's linear layer of files with quantised layers, a class of its own that only shares the name."""
    return isinstance(layer, nn.Linear) or type(layer).__name__ == "Linear"


def linear_shapes(module: nn.Module) -> dict[str, tuple[int, int]]:
    """(out, in) of all linear layers by path. Call it before LoRA layers are in."""
    return {name: (layer.out_features, layer.in_features) for name, layer in module.named_modules() if is_linear(layer)}


def inject(module: nn.Module, job: Job) -> None:
    """Put a LoRA on the target layers: fp32 whatever the base is, A random by ``job.seed``, B zero, so nothing changes yet."""
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import Linear

    names = target_layers(module, job.targets, job.pattern)
    module.requires_grad_(False)
    pattern = "|".join(re.escape(name) for name in names)
    config = LoraConfig(r=job.rank, lora_alpha=job.alpha, target_modules=f"({pattern})", lora_dropout=0.0, bias="none")
    config._register_custom_module({type(module.get_submodule(name)): Linear for name in names})  # PEFT knows nn.Linear alone
    inject_adapter_in_model(config, module, adapter_name=ADAPTER)
    for layer in _layers(module).values():
        layer.lora_A.to(torch.float32)
        layer.lora_B.to(torch.float32)
    parameters = tensors(module)
    with torch.no_grad():
        for name, start in first_weights(parameters, job).items():
            parameters[name].copy_(start)


def first_weights(like: Mapping[str, Tensor], job: Job) -> dict[str, Tensor]:
    """The LoRA before any update, fp32 with the shapes of ``like``: A is normal with std 1 / rank, B is zero.

    Drawn here and not by PEFT: an fp8 base would round the start to a few values, and the seed of the job must decide it.
    """
    generator = torch.Generator("cpu").manual_seed(job.seed)
    return {name: torch.randn(w.shape, generator=generator) / job.rank if name.endswith("lora_A.weight") else torch.zeros(w.shape) for name, w in like.items()}


def _layers(module: nn.Module) -> dict[str, Any]:
    from peft.tuners.lora import LoraLayer

    return {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}


def tensors(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of the LoRA in a fixed order, by their keys without prefix."""
    result = {}
    for name, layer in sorted(_layers(module).items()):
        result[f"{name}.lora_A.weight"] = layer.lora_A[ADAPTER].weight
        result[f"{name}.lora_B.weight"] = layer.lora_B[ADAPTER].weight
    return result


def switch(module: nn.Module, on: bool) -> None:
    """Turn the LoRA on or off. PEFT's switch also turns off its gradients, which come back with it."""
    for layer in _layers(module).values():
        layer.enable_adapters(on)


def prefix_of(job: Job) -> str:
    """How the keys of the job's version files begin: as ComfyUI's own modules, unless the base says otherwise."""
    return job.base.get("prefix", PREFIX)


def file_tensors(weights: dict[str, Tensor], alpha: float, prefix: str = PREFIX) -> dict[str, Tensor]:
    """The tensors of a version file: fp32, with one alpha a layer."""
    result = {prefix + name: weight.detach().float().cpu().contiguous() for name, weight in weights.items()}
    for name in weights:
        if name.endswith(".lora_A.weight"):
            result[prefix + name.removesuffix(".lora_A.weight") + ".alpha"] = torch.tensor(float(alpha))
    return result


def save(weights: dict[str, Tensor], job: Job, about: dict[str, Any]) -> bytes:
    """A version file as bytes, with the job and the version in its metadata."""
    return sorted_metadata(safetensors.torch.save(file_tensors(weights, job.alpha, prefix_of(job)), metadata(job, about)))


def sorted_metadata(data: bytes) -> bytes:
    """safetensors writes metadata in random order; here the same weights must give the same bytes, hence the same digest."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def metadata_of(data: bytes) -> dict[str, str]:
    """The metadata of a safetensors file's bytes."""
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})


def load(data: bytes) -> dict[str, Tensor]:
    """The LoRA's tensors by module path from a version file's bytes."""
    found = safetensors.torch.load(data)
    bare = lambda name: next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
    return {bare(name): tensor for name, tensor in found.items() if not name.endswith(".alpha")}
