"""Base Model: a model file that the trainer can find again."""

from pathlib import Path
from typing import Any

import folder_paths
from comfy_api.latest import io

from ..training.backends.loading import DTYPES, load_model
from ..training.backends.stacking import put_loras
from ..training.base import LORA_KIND, describe, describe_lora, refuse_gguf
from .convert import attached_base, bare, foreign_patches, with_base
from .graph_reading import CannotSee, Chain, read_chain
from .search_words import schema
from .sockets import CATEGORY

CHECKPOINT = "checkpoints/"  # prefix of checkpoint names in the list


class BaseModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_BaseModel",
            display_name="Base Model to fine-tune (Stepwise GRPO)",
            category=CATEGORY,
            description="Loads a flow-matching model (SD3.5, Flux, Qwen-Image, Z-Image, ...) and remembers its file, so that the trainer trains the same one.",
            inputs=[
                io.Combo.Input("model_name", options=model_names(), tooltip="Files in models/diffusion_models, then those in models/checkpoints. Of a checkpoint only the model is used; take CLIP and VAE from their own loaders."),
                io.Combo.Input("weight_dtype", options=list(DTYPES), default="default", tooltip="Precision of the weights in the graph, as in Load Diffusion Model. The trainer loads the file in the same precision. Fixed for a run."),
            ],
            outputs=[io.Model.Output("base_model", display_name="MODEL", tooltip="The model. Put Live LoRA behind it.")],
        )

    @classmethod
    def execute(cls, model_name: str, weight_dtype: str) -> io.NodeOutput:
        kind, name = kind_and_name(model_name)
        return io.NodeOutput(with_base(load_model(kind, name, weight_dtype), describe(kind, name, find(kind, name), weight_dtype)))


def model_names() -> list[str]:
    checkpoints = folder_paths.get_filename_list("checkpoints")
    return [*folder_paths.get_filename_list("diffusion_models"), *(CHECKPOINT + name for name in checkpoints)]


def kind_and_name(choice: str) -> tuple[str, str]:
    """The folder_paths kind and the file's name there."""
    if choice.startswith(CHECKPOINT) and choice not in folder_paths.get_filename_list("diffusion_models"):
        return "checkpoints", choice.removeprefix(CHECKPOINT)
    return "diffusion_models", choice


def find(kind: str, name: str) -> Path:
    return Path(folder_paths.get_full_path_or_raise(kind, name))


def base_of(model: Any, node: Any) -> dict[str, Any]:
    """The base model behind the input ``model`` of the running ``node``, as in Job.base.

    The file is what Base Model or Demo Model wrote on the MODEL, or the stock loader's in the graph; LoRAs are read in the
    graph and must explain every weight patch. Otherwise a ``ValueError`` names the node or file. A node that cannot be seen
    through does no harm where the MODEL tells its file and carries no other patches.
    """
    base, foreign = attached_base(model), foreign_patches(model)
    try:
        chain = read_chain(*_running(node))
    except CannotSee:
        if base is None or foreign:
            raise
        return base
    base = base or described(chain)
    loras = [describe_lora(name, find(LORA_KIND, name), strength) for name, strength in chain.loras]
    if foreign_patches(put_loras(bare(model), loras)) != foreign:
        listed = ", ".join(f"{name} at {strength:g}" for name, strength in chain.loras) or "none"
        raise ValueError(f"the model's weights are patched otherwise than by the LoRA loaders in the graph ({listed}), which the trainer cannot repeat; take out the node that does it")
    return {**base, "loras": loras} if loras else base


def _running(node: Any) -> tuple[dict[str, Any] | None, str]:
    """The graph that runs and the node's id in it; nothing where the node is called from outside a graph."""
    return (node.hidden.prompt, node.hidden.unique_id) if node.hidden else (None, "")


def described(chain: Chain) -> dict[str, Any]:
    """The file of a stock loader, as in Job.base."""
    path = find(chain.kind, chain.name)
    refuse_gguf(chain.name, path)
    return describe(chain.kind, chain.name, path, chain.weight_dtype)


NODES = [BaseModel]
