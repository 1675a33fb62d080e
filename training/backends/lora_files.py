"""LoRA files of other programs, read with the key map of ComfyUI's own loader."""

# ruff: noqa: I001 - loading comes first: it lets ComfyUI read its command line before any other import of comfy

from pathlib import Path
from typing import Any

from .loading import folder_paths

import comfy.lora
import comfy.lora_convert
import comfy.utils
import comfy.weight_adapter
import safetensors.torch
import torch
from torch import Tensor

from ..config import Job
from ..job import retry_sharing
from ..base import LORA_KIND, Unfit, check_file
from ..lora import PREFIX, first_weights
from .stacking import is_text_encoder

Factors = dict[str, tuple[Tensor, Tensor]]  # by layer path: A (rank, in) and B (out, rank), fp32; the weight's change is B A


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a LoRA file. A safetensors file is read whole: a mapped one could not be replaced on Windows."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load(retry_sharing(path.read_bytes))
        return comfy.utils.load_torch_file(str(path), safe_load=True)
    except OSError:
        raise
    except Exception as error:  # what torch says of another kind of file is long and gives dangerous advice
        raise Unfit(f"{path.name} is damaged or no LoRA file ({type(error).__name__}); take a .safetensors file") from None


def factors(tensors: dict[str, Tensor], key_map: dict[str, Any], shapes: dict[str, tuple[int, int]]) -> Factors:
    """A and B of every layer that a LoRA changes, alpha / rank in B. ``shapes``: (out, in) of the model's layers by path.

    The parts of a fused layer, such as the separate q, k and v of diffusers, become one LoRA of their added ranks; parts
    with the same A share it. ``Unfit`` for another architecture and for everything that is no plain LoRA.
    """
    tensors = comfy.lora_convert.convert_lora(tensors)
    found = comfy.lora.load_lora(dict(tensors), key_map, log_missing=False)
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    used: set[str] = set()
    for target, adapter in found.items():
        key, offset, function = (*target, None, None)[:3] if isinstance(target, tuple) else (target, None, None)
        layer = key.removeprefix(PREFIX).removesuffix(".weight")
        down, up = _plain(layer, adapter)
        rows = slice(offset[1], offset[1] + offset[2]) if offset is not None else slice(0, shapes.get(layer, (len(up), 0))[0])
        if layer not in shapes or (len(up), down.shape[1]) != (rows.stop - rows.start, shapes[layer][1]):
            raise Unfit(f"its layer {layer!r} has another shape than this model's: it was made for another model")
        if not (down.isfinite().all() and up.isfinite().all()):
            raise Unfit(f"its layer {layer!r} holds NaN or infinity: the file is damaged, or its training failed; take another one")
        placed = up.new_zeros(shapes[layer][0], up.shape[1])
        placed[rows] = up
        parts.setdefault(layer, []).append((down, placed if function is None else function(placed)))
        used |= adapter.loaded_keys
    _refuse_strangers(set(tensors) - used, len(found))
    return {layer: _joined(several) for layer, several in sorted(parts.items())}


def _plain(layer: str, adapter: Any) -> tuple[Tensor, Tensor]:
    """A and B of a plain LoRA of a linear layer, alpha / rank in B."""
    kind = {"lora": "DoRA or convolution", "loha": "LoHa", "lokr": "LoKr"}.get(getattr(adapter, "name", ""), "full difference")
    if isinstance(adapter, comfy.weight_adapter.LoRAAdapter):
        up, down, alpha, middle, dora, reshape = adapter.weights
        if up.dim() == down.dim() == 2 and middle is None and dora is None and reshape is None:
            return down.float(), up.float() * (1.0 if alpha is None else alpha / len(down))
    raise Unfit(f"its layer {layer!r} is a {kind}, not a plain LoRA of a linear layer; take a file with plain LoRA layers only")


def _refuse_strangers(names: set[str], found: int) -> None:
    strangers = sorted(name for name in names if not is_text_encoder(name))
    if strangers or not found:
        example = f", such as {strangers[0]!r}" if strangers else ""
        raise Unfit(f"{len(strangers)} of its tensors belong to no layer of this model{example}: it was made for another model")


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    downs: list[Tensor] = []
    ups: list[Tensor] = []
    for down, up in parts:
        same = next((i for i, other in enumerate(downs) if torch.equal(other, down)), None)
        if same is None:
            downs.append(down)
            ups.append(up)
        else:
            ups[same] = ups[same] + up
    return torch.cat(downs), torch.cat(ups, 1)


def start_weights(job: Job, like: dict[str, Tensor], key_map: dict[str, Any], shapes: dict[str, tuple[int, int]]) -> dict[str, Tensor]:
    """Version 0 of a run that starts from a LoRA file: the same change of every weight at the run's own rank and alpha.

    Free ranks, and layers that the file lacks, are as in a fresh LoRA: A random, B zero.
    """
    name = job.start["name"]
    check_file(f"the LoRA {name!r} that this run started from", LORA_KIND, job.start, folder_paths.get_full_path)
    path = Path(folder_paths.get_full_path(LORA_KIND, name))
    weights = first_weights(like, job)
    try:
        for layer, (down, up) in factors(read_tensors(path), key_map, shapes).items():
            if f"{layer}.lora_A.weight" not in weights:
                raise Unfit(f"it changes the layer {layer!r}, which this run does not train; choose targets or a target_pattern that take it in")
            if len(down) > job.rank:
                raise Unfit(f"its layer {layer!r} has rank {len(down)}, this run has {job.rank}; set rank to at least {len(down)}")
            weights[f"{layer}.lora_A.weight"][: len(down)] = down
            weights[f"{layer}.lora_B.weight"][:, : len(down)] = up * (job.rank / job.alpha)
    except Unfit as error:
        raise Unfit(f"start_from: this run cannot start from the LoRA {name!r}: {error}") from None
    return weights
