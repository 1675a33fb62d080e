"""The artist's model file as ComfyUI loads it: found by folder kind and name, refused where it is no plain flow model."""

# ruff: noqa: E402 - every other comfy import must come after comfy.options has been told to read the command line

from pathlib import Path
from typing import Any

import comfy.options

comfy.options.enable_args_parsing()  # a no-op inside ComfyUI; in the trainer it must come before every other comfy import

import comfy.model_sampling
import comfy.sd
import folder_paths
import torch

from ..base import check_same

SUCH_AS = "SD3.5, Flux, Qwen-Image or Z-Image"


def check_flow_matching(patcher: Any) -> None:
    """``ValueError`` unless the model is a plain flow-matching model: x_t = (1 - t) x0 + t x1, t from 1 to 0.

    Decided on the sampling object, never on class names.
    """
    sampling = patcher.get_model_object("model_sampling")
    image_to_image = getattr(comfy.model_sampling, "IMG_TO_IMG_FLOW", ())
    if not isinstance(sampling, comfy.model_sampling.CONST) or isinstance(sampling, image_to_image):
        raise ValueError(f"this model is not flow matching ({type(patcher.model).__name__}): Stepwise GRPO needs a flow model such as {SUCH_AS}")
    if abs(float(sampling.sigma_max) - 1) > 1e-3:
        raise ValueError(f"this model's noise levels end at {float(sampling.sigma_max):g} instead of 1; it is another kind of flow and cannot be trained")
    noise, clean, t = torch.tensor([[2.0]]), torch.tensor([[3.0]]), torch.tensor([0.25])
    if not torch.allclose(sampling.noise_scaling(t, noise, clean).float(), torch.tensor([[2.75]])):
        raise ValueError("this model mixes noise and picture in its own way (noise scale), which the transition laws do not cover")


def class_of(model: Any) -> str:
    """The class of a model of ComfyUI. Z-Image, one of its Lumina2 models, has a name of its own here."""
    name = type(model).__name__
    return "ZImage" if name == "Lumina2" and model.model_config.unet_config.get("z_image_modulation") else name


def find_base(base: dict[str, Any]) -> Path | None:
    """The file of a job's base model, None for the demo model; a missing or replaced file is a ``ValueError``."""
    if base["kind"] == "demo":
        return None
    path = folder_paths.get_full_path(base["kind"], base["name"])
    check_same(base, None if path is None else Path(path))
    return Path(path)


def load_base(base: dict[str, Any]) -> Any:
    """A fresh ModelPatcher of a job's base model."""
    path = find_base(base)
    if path is None:
        from ...demo.comfy_model import load_demo_model

        return load_demo_model()
    if base["kind"] == "checkpoints":
        return comfy.sd.load_checkpoint_guess_config(str(path), output_vae=False, output_clip=False)[0]
    return comfy.sd.load_diffusion_model(str(path))


def set_model_folders(folders: dict[str, list[str]]) -> None:
    """Look for models where the recorded ComfyUI does, extra model paths included."""
    for kind, paths in folders.items():
        known = folder_paths.folder_names_and_paths.get(kind)
        extensions = known[1] if known else folder_paths.supported_pt_extensions
        folder_paths.folder_names_and_paths[kind] = (list(paths), extensions)
