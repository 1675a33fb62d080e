"""``python training export``: a version of a run in the layout of diffusers or PEFT."""

import argparse
import json
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from .comfyui import add_options, output_of, use_comfyui
from .config import Job, from_json
from .job import RunFolder, all_runs, retry_sharing, write_whole
from .lora import load, metadata_of, sorted_metadata

FORMATS = ("diffusers", "peft")


def main(arguments: list[str]) -> None:
    """write a version for diffusers or PEFT"""
    parser = argparse.ArgumentParser(prog="python training export", description="Writes a version of a run in the layout of diffusers or PEFT. Its strength there is 1, as in ComfyUI.")
    parser.add_argument("run", help="name of the run")
    parser.add_argument("--version", type=int, help="which version (default: the newest)")
    parser.add_argument("--format", choices=FORMATS, default="diffusers", help="diffusers: one file for load_lora_weights; peft: an adapter folder for PeftModel.from_pretrained")
    parser.add_argument("--ema", action="store_true", help="the averaged weights of that version")
    parser.add_argument("--out", type=Path, help="where to write (default: beside the version's file)")
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        run = RunFolder(output_of(options), options.run)
        check_exists(run)
        use_comfyui(options, wait=False)
        print(export(run, options.version, options.format, options.ema, options.out))
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from None


def check_exists(run: RunFolder) -> None:
    """``ValueError`` with the runs there are, unless this is one that has a version."""
    if run.latest() is None:
        runs = ", ".join(other.name for other in all_runs(run.output) if other.latest() is not None) or "none"
        raise ValueError(f"there is no run {run.name!r} with a version in {run.output}; runs: {runs}")


def export(run: RunFolder, version: int | None, format: str, ema: bool = False, out: Path | None = None) -> Path:
    """Write a version in another layout; returns the file, or the folder that PEFT loads."""
    from .backends.diffusers_names import parts_of, skeleton

    newest = (run.latest() or {}).get("version", 0)
    version = newest if version is None else version
    file = run.version_file(version, ema)
    if not file.is_file():
        averaged = "averaged " if ema else ""
        raise ValueError(f"run {run.name!r} has no {averaged}version {version} in {run.loras}; the newest version is {newest}")
    data = retry_sharing(file.read_bytes)
    job, weights = read(file, data)
    if job.base["kind"] == "diffusers":
        raise ValueError(f"run {run.name!r} was trained on a diffusers model: its versions load in ComfyUI, and {file.name} holds diffusers' own layers already")
    sizes = {name.removesuffix(".lora_B.weight"): len(w) for name, w in weights.items() if name.endswith(".lora_B.weight")}
    tensors = renamed(weights, parts_of(skeleton(job.base), sizes), job.alpha / job.rank)
    if format == "peft":
        return write_peft(tensors, job.rank, out or file.with_name(f"{file.stem}_peft"))
    out = out or file.with_name(f"{file.stem}_diffusers.safetensors")
    meta = {key: value for key, value in metadata_of(data).items() if key.startswith("modelspec.")}
    write_whole(out, sorted_metadata(safetensors.torch.save({f"transformer.{name}": w for name, w in tensors.items()}, {**meta, "format": "pt"})))
    return out


def read(file: Path, data: bytes) -> tuple[Job, dict[str, Tensor]]:
    """The job and the LoRA of a version file; ``ValueError`` where it is damaged or another program's."""
    try:
        about = metadata_of(data)["stepwise_grpo"]
        return from_json(Job, json.loads(about)["job"]), load(data)
    except Exception as error:
        raise ValueError(f"{file} is damaged or was not written by this trainer ({type(error).__name__}: {error}); export another version") from None


def renamed(weights: dict[str, Tensor], parts: dict[str, list[Any]], scale: float) -> dict[str, Tensor]:
    """A and B by the names of diffusers, ``scale`` = alpha / rank in B. The parts of a layer have its A and their rows of its B."""
    tensors = {}
    for layer, several in parts.items():
        down, up = weights[f"{layer}.lora_A.weight"], weights[f"{layer}.lora_B.weight"] * scale
        for part in several:
            rows = up[part.rows] if part.order is None else part.order(up[part.rows])
            tensors[f"{part.name}.lora_A.weight"], tensors[f"{part.name}.lora_B.weight"] = down.clone(), rows.clone().contiguous()
    return tensors


def write_peft(tensors: dict[str, Tensor], rank: int, folder: Path) -> Path:
    """An adapter folder: the tensors first, then the configuration, without which PEFT does not take it."""
    layers = sorted({name.rsplit(".lora_", 1)[0] for name in tensors})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": layers, "bias": "none", "lora_dropout": 0.0, "inference_mode": True}
    write_whole(folder / "adapter_model.safetensors", safetensors.torch.save({f"base_model.model.{name}": w for name, w in tensors.items()}, {"format": "pt"}))
    write_whole(folder / "adapter_config.json", json.dumps(config, indent=1).encode("utf-8"))
    return folder
