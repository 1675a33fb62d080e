"""Which file and which LoRAs stand behind a MODEL, read from the graph that runs: pure functions over the prompt."""

# The prompt as the server has it: {node id: {"class_type", "inputs", "_meta": {"title"}}}, where an input is a widget's value
# or the link [node id, output]. Nodes inside a subgraph have ids such as "12:3".

from dataclasses import dataclass
from typing import Any

Prompt = dict[str, Any]
# The stock loaders: where the file lies (ComfyUI's name for the folders), and the widget that names it.
LOADERS = {
    "UNETLoader": ("diffusion_models", "unet_name"),
    "CheckpointLoaderSimple": ("checkpoints", "ckpt_name"),
    "ImageOnlyCheckpointLoader": ("checkpoints", "ckpt_name"),
    "unCLIPCheckpointLoader": ("checkpoints", "ckpt_name"),
}
OUR_LOADERS = ("StepwiseGRPO_BaseModel", "StepwiseGRPO_DemoModel")
LORA_LOADERS = ("LoraLoader", "LoraLoaderModelOnly")
# Nodes that leave the weights alone, or, as Live LoRA, write on the MODEL what they did. What they do to sampling is seen on the MODEL.
SEE_THROUGH = (
    *("ModelSamplingSD3", "ModelSamplingAuraFlow", "ModelSamplingFlux", "ModelSamplingLTXV", "ModelNoiseScale", "ModelSamplingDiscrete"),
    *("ModelSamplingContinuousEDM", "ModelSamplingContinuousV", "ModelSamplingStableCascade", "StepwiseGRPO_LiveLoRA"),
)
REMEDY = "Between loader and sampler use Load LoRA, ModelSampling nodes and Live LoRA only, and load with Base Model, Load Diffusion Model or Load Checkpoint"


class CannotSee(ValueError):
    """The graph does not tell; the message names the node and the remedy."""


@dataclass(frozen=True)
class Chain:
    """A loader's file and the LoRAs that follow it."""

    kind: str
    """ComfyUI's name for the folders of the file; empty behind Base Model and Demo Model, whose MODEL tells its file by itself."""
    name: str
    weight_dtype: str
    loras: tuple[tuple[str, float], ...]
    """(name, strength), in the order in which they are applied; those of strength 0 do nothing and are left out."""


def read_chain(prompt: Prompt | None, id: str) -> Chain:
    """The chain behind the input ``model`` of node ``id``; a node it cannot see through is ``CannotSee``."""
    loras: list[tuple[str, float]] = []
    id = _source(prompt or {}, id)
    while (node := prompt[id])["class_type"] not in (*LOADERS, *OUR_LOADERS):
        kind = node["class_type"]
        if kind in LORA_LOADERS:
            strength = float(_widget(node, id, "strength_model"))
            loras += [(_widget(node, id, "lora_name"), strength)] if strength else []
        elif kind.startswith("UnetLoaderGGUF"):
            raise CannotSee(f"{_called(node, id)} loads a GGUF file, whose weights cannot be trained on; take the model's .safetensors file with Load Diffusion Model (fp8 is about as small)")
        elif kind not in SEE_THROUGH:
            raise CannotSee(f"cannot see through {_called(node, id)}: it may change the model's weights, and the trainer could not repeat that. {REMEDY}")
        id = _source(prompt, id)
    return _chain(node, id, tuple(reversed(loras)))


def _chain(node: dict[str, Any], id: str, loras: tuple[tuple[str, float], ...]) -> Chain:
    if node["class_type"] in OUR_LOADERS:
        return Chain("", "", "default", loras)
    folder, widget = LOADERS[node["class_type"]]
    precision = _widget(node, id, "weight_dtype") if "weight_dtype" in node["inputs"] else "default"
    return Chain(folder, _widget(node, id, widget), precision, loras)


def _source(prompt: Prompt, id: str) -> str:
    """The node whose MODEL enters node ``id``."""
    link = prompt.get(id, {}).get("inputs", {}).get("model")
    if not _is_link(link) or link[0] not in prompt:
        where = _called(prompt[id], id) if id in prompt else f"node {id}"
        raise CannotSee(f"cannot see where the model of {where} comes from: the graph as it was queued does not say so. {REMEDY}")
    return link[0]


def _widget(node: dict[str, Any], id: str, name: str) -> Any:
    value = node["inputs"].get(name)
    if value is None or _is_link(value):
        raise CannotSee(f"{name} of {_called(node, id)} comes from another node, so the trainer cannot know it; choose it in the widget")
    return value


def _is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _called(node: dict[str, Any], id: str) -> str:
    title = node.get("_meta", {}).get("title", "")
    return f"{title!r} ({node['class_type']}, node {id})" if title else f"{node['class_type']} (node {id})"
