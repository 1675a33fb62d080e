"""The table of recommended settings, looked up for a MODEL: the node that shows it, and what automatic widgets take from it."""

import math
from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io, ui

from ..training.base import DEMO
from ..training.defaults import Row, alpha_for, describe, find, shown
from .base_model import base_of
from .convert import attached_base
from .progress import Progress
from .search_words import schema
from .sockets import AUTO, CATEGORY

Law = io.Custom("COMBO")  # the type of a combo widget; that of io.Combo.Output is a list, which no widget takes
AUTOMATIC = {"learning_rate": 0, "clip": 0, "targets": AUTO, "rank": 0, "alpha": 0}  # GRPO LoRA Trainer's


class RecommendedSettings(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_RecommendedSettings",
            display_name="Recommended Settings (Stepwise GRPO)",
            category=CATEGORY,
            description="Starting values for fine-tuning this model, each with its source. Wire them into the scheduler, the latent and the sampler. Draw the node taller to read all of its note.",
            is_output_node=True,
            inputs=[io.Model.Input("model", tooltip="The model you fine-tune, from Base Model, Demo Model or a stock loader.")],
            outputs=outputs(),
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
        )

    @classmethod
    def execute(cls, model: Any) -> io.NodeOutput:
        row = row_of(model, base_or_none(model, cls))
        note = describe(row)
        Progress(cls, 1).say(note)
        return io.NodeOutput(*values(model, row), note, ui=ui.PreviewText(note))


def outputs() -> list[io.Output]:
    return [
        io.Int.Output("steps", display_name="steps", tooltip="Denoising steps of a rollout, for the scheduler node."),
        io.Float.Output("cfg", display_name="cfg", tooltip="For Stepwise SDE Sampler and for the stock KSampler."),
        io.Float.Output("guidance", display_name="guidance", tooltip="For Flux Guidance. 0 where the model has no such input."),
        io.Float.Output(
            "shift",
            display_name="shift",
            tooltip="For the ModelSampling node that the note names. Where the note calls it ComfyUI's own, the model has it without that node.",
        ),
        io.Int.Output("width", display_name="width", tooltip="For the empty latent, in px."),
        io.Int.Output("height", display_name="height", tooltip="For the empty latent, in px."),
        io.Int.Output("group_size", display_name="group_size", tooltip="Pictures a prompt, for Stepwise SDE Sampler."),
        Law.Output("law", display_name="law", tooltip="For Stepwise SDE Sampler."),
        io.Float.Output("eta", display_name="eta", tooltip="For Stepwise SDE Sampler; it belongs to law."),
        io.String.Output("note", display_name="note", tooltip="Every value with its source."),
    ]


def base_or_none(model: Any, node: Any) -> dict[str, Any] | None:
    """The base model as the MODEL or the graph tells it; None where neither does, for here only its name would be of use."""
    try:
        return base_of(model, node)
    except ValueError:
        return None


def row_of(model: Any, base: Mapping[str, Any] | None = None) -> Row:
    """The row of the table for a MODEL, by ComfyUI's class for it, its file's name, and its guidance input.

    ``base``: its description where the MODEL does not carry one, as behind a stock loader.
    """
    base, config = base or attached_base(model) or {}, model.model.model_config
    name = "Demo" if base.get("kind") == DEMO["kind"] else type(config).__name__
    return find(name, base.get("name", ""), bool(config.unet_config.get("guidance_embed")))


def values(model: Any, row: Row) -> tuple[Any, ...]:
    """The node's outputs but the note."""
    shift = own_shift(model) if row.shift is None else row.shift
    return (row.steps, row.cfg, row.guidance or 0.0, shift, *row.size, row.group_size, row.law, row.eta)


def own_shift(model: Any) -> float:
    """s in t -> s t / (1 + (s - 1) t) as the model is set now. Models of Flux's kind, which have no multiplier, keep its logarithm."""
    sampling = model.get_model_object("model_sampling")
    shift = float(getattr(sampling, "shift", 1.0))
    return shift if hasattr(sampling, "multiplier") else math.exp(shift)


def law_of(row: Row, law: str, eta: float) -> tuple[str, float]:
    """Law and eta of the widgets; "auto" takes the row's law, and its eta where eta is -1."""
    return (law, eta) if law != AUTO else (row.law, row.eta if eta == -1 else eta)


def filled(widgets: Mapping[str, Any], row: Row, known: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer's widgets with the row's value where one is left automatic. What the run's job has fixed stays (``known``)."""
    result = dict(widgets)
    for name in chosen(widgets):
        result[name] = known.get(name, vars(row)[name])
    if "alpha" in chosen(widgets) and "alpha" not in known:
        result["alpha"] = alpha_for(row, result["rank"])
    return result


def chosen(widgets: Mapping[str, Any]) -> list[str]:
    """Names of the widgets that are left automatic."""
    return [name for name, automatic in AUTOMATIC.items() if widgets[name] == automatic]


def choice(widgets: Mapping[str, Any], result: Mapping[str, Any], row: Row) -> str:
    """A sentence that tells what the automatic widgets became; empty when none was automatic."""
    told = ", ".join(f"{name} {shown(result[name])}" for name in chosen(widgets))
    return f"Chosen for {row.name} ({row.kind}): {told}." if told else ""


NODES = [RecommendedSettings]
