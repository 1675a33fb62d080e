"""The artist's model file as ComfyUI loads it: found by folder kind and name, refused where it is no plain flow model."""

# ruff: noqa: E402 - every other comfy import must come after comfy.options has been told to read the command line

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import comfy.options

comfy.options.enable_args_parsing()  # a no-op inside ComfyUI; in the trainer it must come before every other comfy import

import comfy.model_base
import comfy.model_management
import comfy.model_sampling
import comfy.sd
import folder_paths
import torch
from safetensors import SafetensorError

from ..base import Unfit, check_same, refuse_gguf
from .stacking import put_loras

DTYPES: dict[str, dict[str, Any]] = {
    "default": {},
    "fp8_e4m3fn": {"dtype": torch.float8_e4m3fn},
    "fp8_e4m3fn_fast": {"dtype": torch.float8_e4m3fn, "fp8_optimizations": True},
    "fp8_e5m2": {"dtype": torch.float8_e5m2},
}
"""Options of ComfyUI's loaders by the names of Load Diffusion Model's weight_dtype."""
TRAINED_AS = {"fp8_e4m3fn_fast": "fp8_e4m3fn"}  # the fast matrix product of fp8 has no backward; the weights are the same

SUCH_AS = "SD3.5, Flux, Qwen-Image or Z-Image"


def check_flow_matching(patcher: Any) -> None:
    """``ValueError`` unless the model is a plain flow-matching model: x_t = (1 - t) x0 + t x1, t from 1 to 0.

    Decided on the sampling object, never on class names.
    """
    sampling, name = patcher.get_model_object("model_sampling"), type(patcher.model).__name__
    image_to_image = getattr(comfy.model_sampling, "IMG_TO_IMG_FLOW", ())
    if not isinstance(sampling, comfy.model_sampling.CONST) or isinstance(sampling, image_to_image):
        raise Unfit(f"this model is not flow matching ({name}): Stepwise GRPO needs a flow model such as {SUCH_AS}")
    if abs(float(sampling.sigma_max) - 1) > 1e-3:
        raise Unfit(f"the noise levels of this model ({name}) end at {float(sampling.sigma_max):g} instead of 1; it is another kind of flow and cannot be trained")
    noise, clean, t = torch.tensor([[2.0]]), torch.tensor([[3.0]]), torch.tensor([0.25])
    if not torch.allclose(sampling.noise_scaling(t, noise, clean).float(), torch.tensor([[2.75]])):
        raise Unfit(f"this model ({name}) mixes noise and picture in its own way (noise scale), which the transition laws do not cover")


def class_of(model: Any) -> str:
    """The class of a model of ComfyUI. Z-Image, one of its Lumina2 models, has a name of its own here."""
    name = type(model).__name__
    return "ZImage" if name == "Lumina2" and model.model_config.unet_config.get("z_image_modulation") else name


def find_base(base: dict[str, Any]) -> Path | None:
    """The file of a job's base model, None for the demo model; a missing or replaced file is a ``ValueError``."""
    check_same(base, folder_paths.get_full_path)
    return None if base["kind"] == "demo" else Path(folder_paths.get_full_path(base["kind"], base["name"]))


def load_base(base: dict[str, Any]) -> Any:
    """A fresh ModelPatcher of a job's base model with the LoRAs below the trained one.

    A missing or replaced file is a ``ValueError``; a base that can never be trained is an ``Unfit``.
    """
    check_same(base, folder_paths.get_full_path)
    if base["kind"] == "demo":
        from ...demo.comfy_model import load_demo_model

        patcher = load_demo_model()
    else:
        weight_dtype = base.get("weight_dtype", "default")
        patcher = load_model(base["kind"], base["name"], TRAINED_AS.get(weight_dtype, weight_dtype))
    return put_loras(patcher, base.get("loras", []))


def load_model(kind: str, name: str, weight_dtype: str = "default") -> Any:
    """The model of a file in one of ComfyUI's folders, for the graph and for the trainer; ``Unfit`` unless it is whole."""
    path = folder_paths.get_full_path_or_raise(kind, name)
    refuse_gguf(name, Path(path))
    if weight_dtype not in DTYPES:
        raise Unfit(f"weight_dtype must be one of {', '.join(DTYPES)}; got {weight_dtype!r}")
    options = DTYPES[weight_dtype]
    if "dtype" in options:
        check_dtype(options["dtype"], comfy.model_management.get_torch_device())
    with _missing_weights() as missing:
        patcher = _load(kind, path, dict(options))
    if patcher is None:
        raise Unfit(f"ComfyUI cannot tell what kind of model {name!r} is: it is no diffusion model, is damaged, or needs a newer ComfyUI")
    if missing:
        raise Unfit(f"{name!r} is not whole: {len(missing)} weights are missing ({', '.join(missing[:3])}), which ComfyUI would leave random; download it again, or update ComfyUI if the model is new")
    return patcher


def _load(kind: str, path: str, options: dict[str, Any]) -> Any | None:
    """As ComfyUI loads it; None where it cannot tell what it is. Faults of the file, not of the machine, are an ``Unfit``."""
    try:
        if kind == "checkpoints":
            found = comfy.sd.load_checkpoint_guess_config(path, output_vae=False, output_clip=False, model_options=options)
            return None if found is None else found[0]
        return comfy.sd.load_diffusion_model(path, model_options=options)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        if "Could not detect model type" in str(error):
            return None
        if isinstance(error, RuntimeError) and "loading state_dict" not in str(error):
            raise  # too little memory, a fault of the graphics card
        raise Unfit(f"ComfyUI cannot load {Path(path).name!r}, which is damaged or of a kind it does not know ({_short(error)}); download it again, or update ComfyUI") from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


@contextmanager
def _missing_weights() -> Iterator[list[str]]:
    """Names of the weights that a model loaded inside does not find in its file. ComfyUI logs them and goes on."""
    missing: list[str] = []
    load = comfy.model_base.BaseModel.load_model_weights

    def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
        hook = model.diffusion_model.register_load_state_dict_post_hook(lambda module, keys: missing.extend(keys.missing_keys))
        try:
            return load(model, *args, **kwargs)
        finally:
            hook.remove()

    comfy.model_base.BaseModel.load_model_weights = watched
    try:
        yield missing
    finally:
        comfy.model_base.BaseModel.load_model_weights = load


def check_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """``Unfit`` unless the device can hold weights of this type and compute with them."""
    try:
        held = torch.ones(2, device=device).to(dtype)
        works = (2 * held.to(torch.float32)).sum().item() == 4
    except (RuntimeError, TypeError):
        works = False
    if not works:
        raise Unfit(f"this device ({device.type}) cannot work with {str(dtype).removeprefix('torch.')}; choose another weight_dtype, for example default")


def set_model_folders(folders: dict[str, list[str]]) -> None:
    """Look for models where the recorded ComfyUI does, extra model paths included."""
    for kind, paths in folders.items():
        known = folder_paths.folder_names_and_paths.get(kind)
        extensions = known[1] if known else folder_paths.supported_pt_extensions
        folder_paths.folder_names_and_paths[kind] = (list(paths), extensions)


def add_model_folder(kind: str, folder: Path) -> None:
    """Look for models of this kind in one more folder, before the others."""
    paths, extensions = folder_paths.folder_names_and_paths.get(kind, ([], folder_paths.supported_pt_extensions))
    folder_paths.folder_names_and_paths[kind] = ([str(folder), *paths], extensions)
