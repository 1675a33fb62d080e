"""A diffusers pipeline from a local folder, its network perhaps from a file of its own. Nothing is ever downloaded."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...base import describe, quick_digest
from .architectures import ARCHITECTURES, Architecture

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Source:
    """Where a model lies, checked but not loaded."""

    folder: Path
    """A diffusers pipeline: model_index.json and a folder for each part."""
    architecture: Architecture
    file: Path | None
    """The network's own safetensors file; None = the one in the folder."""

    def base(self) -> dict[str, Any]:
        """The base model as data, for ``Job``."""
        found = describe("diffusers", self.file.name, self.file) if self.file else describe_folder(self.folder)
        return {**found, "architecture": self.architecture.name, "prefix": self.architecture.prefix}


def find(model: Path, components: Path | None, architecture: str = "") -> Source:
    """The model that ``model`` means: a pipeline's folder, or a safetensors file with the other parts in ``components``.

    ``architecture`` decides where the folder's own word for it is unknown. ``ValueError`` in one sentence otherwise.
    """
    file = model if model.is_file() else None
    if file is None and not model.is_dir():
        raise ValueError(f"model: there is no folder or file {model}; download it first, nothing is downloaded here")
    if file is not None and file.suffix != ".safetensors":
        raise ValueError(f"model: {file.name} is not a .safetensors file; other files may run code when they are opened")
    if file is not None and components is None:
        raise ValueError("components: model is a single file, so name the local folder of a diffusers pipeline that has its other parts")
    folder = components if file is not None else model
    index = folder / "model_index.json"
    if not index.is_file():
        raise ValueError(f"{'components' if file else 'model'}: {folder} is not the folder of a diffusers pipeline (it has no model_index.json)")
    return Source(folder, _architecture(json.loads(index.read_text("utf-8")), architecture), file)


def _architecture(index: dict[str, Any], name: str) -> Architecture:
    known = ", ".join(ARCHITECTURES)
    if name and name not in ARCHITECTURES:
        raise ValueError(f"architecture must be one of {known}; got {name!r}")
    pipeline, network = index.get("_class_name"), (index.get("transformer") or [None, None])[1]
    for each in ARCHITECTURES.values():
        if each.name == name or not name and each.pipeline == pipeline:
            if network != each.network:
                raise ValueError(f"model: its network is a {network}, but {each.name} needs a {each.network}")
            if index.get("boundary_ratio") is not None or index.get("expand_timesteps"):
                raise ValueError("model: Wan 2.2 shares its steps between two networks or gives each patch a time of its own; only Wan 2.1 can be trained")
            return each
    raise ValueError(f"model: a {pipeline} cannot be trained; known are {', '.join(each.pipeline for each in ARCHITECTURES.values())}")


def describe_folder(folder: Path) -> dict[str, Any]:
    """{kind, name, size, sha256} of a pipeline's network: all its files together."""
    files = sorted((folder / "transformer").glob("*.safetensors"))
    if not files:
        raise ValueError(f"model: {folder / 'transformer'} has no .safetensors file")
    digest = hashlib.sha256("".join(quick_digest(file) for file in files).encode()).hexdigest()
    return {"kind": "diffusers", "name": folder.name, "size": sum(file.stat().st_size for file in files), "sha256": digest}


def load(source: Source, dtype: str) -> Any:
    """The pipeline on the CPU, its parts in ``dtype``."""
    try:
        import diffusers
    except ImportError:
        raise ValueError("headless training needs two packages more: python -m pip install diffusers accelerate") from None
    diffusers.utils.logging.disable_progress_bar()
    local = {"local_files_only": True, "dtype": DTYPES[dtype]}
    (pipeline, network), parts = _classes(source.architecture.name), {}
    if source.file is not None:
        parts["transformer"] = network.from_single_file(str(source.file), config=str(source.folder), subfolder="transformer", **local)
    return pipeline.from_pretrained(str(source.folder), use_safetensors=True, **parts, **local)


def _classes(name: str) -> tuple[Any, Any]:
    """Pipeline and network of an architecture. diffusers imports a class when it is asked for."""
    import diffusers as d

    if name == "sd3":
        return d.StableDiffusion3Pipeline, d.SD3Transformer2DModel
    if name == "flux":
        return d.FluxPipeline, d.FluxTransformer2DModel
    if name == "qwen_image":
        return d.QwenImagePipeline, d.QwenImageTransformer2DModel
    if name == "z_image":
        return d.ZImagePipeline, d.ZImageTransformer2DModel
    return d.WanPipeline, d.WanTransformer3DModel
