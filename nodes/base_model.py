"""Base Model: a model file that the trainer can find again."""

from pathlib import Path
from typing import Any

import comfy.sd
import folder_paths
import torch
from comfy_api.latest import io

from ..training.base import describe
from .convert import with_base
from .sockets import CATEGORY

CHECKPOINT = "checkpoints/"  # prefix of checkpoint names in the list
DTYPES: dict[str, dict[str, Any]] = {
    "default": {},
    "fp8_e4m3fn": {"dtype": torch.float8_e4m3fn},
    "fp8_e4m3fn_fast": {"dtype": torch.float8_e4m3fn, "fp8_optimizations": True},
    "fp8_e5m2": {"dtype": torch.float8_e5m2},
}


class BaseModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StepwiseGRPO_BaseModel",
            display_name="Base Model to fine-tune (Stepwise GRPO)",
            category=CATEGORY,
            description="Loads a flow-matching model (SD3.5, Flux, Qwen-Image, Z-Image, ...) and remembers its file, so that the trainer trains the same one.",
            inputs=[
                io.Combo.Input("model_name", options=model_names(), tooltip="Files in models/diffusion_models, then those in models/checkpoints. Of a checkpoint only the model is used; take CLIP and VAE from their own loaders."),
                io.Combo.Input("weight_dtype", options=list(DTYPES), default="default", tooltip="Precision of the weights in the graph, as in Load Diffusion Model. The trainer loads the file in its default precision."),
            ],
            outputs=[io.Model.Output("base_model", display_name="MODEL", tooltip="The model. Put Live LoRA behind it.")],
        )

    @classmethod
    def execute(cls, model_name: str, weight_dtype: str) -> io.NodeOutput:
        kind, name = kind_and_name(model_name)
        path = folder_paths.get_full_path_or_raise(kind, name)
        return io.NodeOutput(with_base(load(kind, path, DTYPES[weight_dtype]), describe(kind, name, Path(path))))


def model_names() -> list[str]:
    checkpoints = folder_paths.get_filename_list("checkpoints")
    return [*folder_paths.get_filename_list("diffusion_models"), *(CHECKPOINT + name for name in checkpoints)]


def kind_and_name(choice: str) -> tuple[str, str]:
    """The folder_paths kind and the file's name there."""
    if choice.startswith(CHECKPOINT) and choice not in folder_paths.get_filename_list("diffusion_models"):
        return "checkpoints", choice.removeprefix(CHECKPOINT)
    return "diffusion_models", choice


def load(kind: str, path: str, options: dict[str, Any]) -> Any:
    if kind == "checkpoints":
        return comfy.sd.load_checkpoint_guess_config(path, output_vae=False, output_clip=False, model_options=options)[0]
    return comfy.sd.load_diffusion_model(path, model_options=options)


NODES = [BaseModel]
