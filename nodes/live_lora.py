"""Live LoRA: the newest version of a run on the model, fresh at every Queue."""

from pathlib import Path
from typing import Any

import comfy.sd
import folder_paths
import safetensors.torch
from comfy_api.latest import io

from ..training.backends.lora_files import read_tensors
from ..training.backends.unmerged import merging_rounds, read_factors, with_unmerged_lora
from ..training.base import LORA_KIND, describe_file
from ..training.config import Origin
from ..training.job import RunFolder, all_runs, digest_of, retry_sharing
from . import convert, validate
from .progress import Progress
from .search_words import schema
from .sockets import CATEGORY, advanced

NEWEST = -1
NO_START = "none"
APPLY_AS = ("auto", "merged", "unmerged")


class LiveLoRA(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_LiveLoRA",
            display_name="Live LoRA (Stepwise GRPO)",
            category=CATEGORY,
            description="Puts the LoRA that a run is training on the model. With version -1 every Queue takes the newest one, without a refresh or a restart.",
            inputs=inputs(),
            outputs=[
                io.Model.Output("live_model", display_name="MODEL", tooltip="The model with the LoRA. It remembers run and version for the trainer."),
                io.Int.Output("applied_version", display_name="version", tooltip="The version that was applied; 0 = none."),
                io.String.Output("note", display_name="note", tooltip="What was applied, in words."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, run_name: str | None) -> bool | str:
        return validate.run(run_name)

    @classmethod
    def fingerprint_inputs(cls, run_name: str | None = None, version: int | None = NEWEST, use_ema: bool | None = False, start_from: str | None = NO_START, **_: Any) -> str:
        return fingerprint(output(), run_name, version, use_ema, start_from)

    @classmethod
    def execute(cls, model: Any, run_name: str, version: int, strength: float, use_ema: bool, start_from: str = NO_START, apply_as: str = "auto") -> io.NodeOutput:
        live, applied, note = apply(model, RunFolder(output(), run_name), version, strength, use_ema, start_from, apply_as)
        Progress(cls, 1).say(note)
        return io.NodeOutput(live, applied, note)


def inputs() -> list[io.Input]:
    starts = [NO_START, *folder_paths.get_filename_list(LORA_KIND)]
    return [
        io.Model.Input("model", tooltip="From Base Model, Demo Model or a stock loader. Load LoRA nodes may stand before or behind this node."),
        io.String.Input("run_name", default="my_first_run", tooltip="The run whose LoRA to use: the same name as in GRPO LoRA Trainer. A run that has no version yet leaves the model as it is."),
        io.Int.Input("version", default=NEWEST, min=NEWEST, max=999999, tooltip="-1 = the newest version, 0 = the model without LoRA (or with start_from), otherwise that version: all are kept."),
        io.Float.Input("strength", default=1.0, min=-4.0, max=4.0, step=0.05, round=0.01, tooltip="Strength of the LoRA. Must be 1 for training; other values are for looking."),
        io.Boolean.Input("use_ema", default=False, tooltip="Use the averaged weights of a version, where the run keeps them (ema above 0). For looking, not for training."),
        io.Combo.Input("start_from", options=starts, default=NO_START, optional=True, tooltip="A LoRA to begin the run with instead of the bare model: it is version 0, and training goes on from it. Fixed for a run."),
        advanced(io.Combo.Input("apply_as", options=list(APPLY_AS), default="auto", optional=True, tooltip="merged: into the weights, no slower. unmerged: beside the weights, a little slower, exact for fp8 models. auto = unmerged for fp8 and other quantised models.")),
    ]


def output() -> Path:
    return Path(folder_paths.get_output_directory())


def fingerprint(output: Path, run_name: str | None, version: int | None, use_ema: bool | None, start_from: str | None = NO_START) -> str:
    """Changes exactly when another LoRA would be applied. A linked run name is None here, so all runs count. Never raises."""
    try:
        start = f"{described(start_from)} " if start_from not in (None, NO_START) else ""
        if version == 0:
            return f"{start}0"
        runs = all_runs(output) if run_name is None else [RunFolder(output, run_name)]
        if run_name is not None and version is not None and version > 0:
            return f"{start}{version} {digest_of(retry_sharing(runs[0].version_file(version, bool(use_ema)).read_bytes))}"
        return start + "; ".join(f"{run.name} {latest['version']} {latest['digest']}" for run in runs if (latest := run.latest()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"unreadable: {type(error).__name__}"


def described(start_from: str) -> dict[str, Any] | None:
    """The LoRA file that version 0 is, as data, or None for the bare model."""
    if start_from == NO_START:
        return None
    path = folder_paths.get_full_path(LORA_KIND, start_from)
    if path is None:
        raise ValueError(f"start_from: the LoRA {start_from!r} is not in ComfyUI's loras folders; press R to refresh the list")
    return describe_file(start_from, Path(path))


def apply(model: Any, run: RunFolder, version: int, strength: float, use_ema: bool, start_from: str = NO_START, apply_as: str = "auto") -> tuple[Any, int, str]:
    """The model with a version of the run, the version, and what was done in words."""
    origin = {"run": run.name, "strength": strength, "loras": 1 + convert.origin_of(model).loras, "start": described(start_from)}
    newest = (run.latest() or {}).get("version", 0)
    wanted = newest if version == NEWEST else version
    if newest and wanted:
        data = read_version(run, wanted, newest, use_ema)
        live, how = with_lora(model, safetensors.torch.load(data), strength, apply_as)
        origin |= {"version": wanted, "digest": digest_of(data), "ema": use_ema}
        note = f"{run.name} version {wanted}" + (" (averaged)" if use_ema else "") + how
    elif start_from != NO_START:
        live, how = with_start(model, start_from, strength, apply_as)
        note = (f"version 0: {start_from}" if newest else f"run {run.name!r} has no version yet: it starts from {start_from}") + how
    else:
        live, note = model.clone(), "the model without LoRA (version 0)" if newest else f"run {run.name!r} has no version yet: the model without LoRA"
    convert.mark_origin(model, live, Origin(**origin))
    return live, origin.get("version", 0), note


def with_start(model: Any, name: str, strength: float, apply_as: str) -> tuple[Any, str]:
    """The model with the LoRA that the run starts from, which the trainer must be able to take up."""
    path = Path(folder_paths.get_full_path_or_raise(LORA_KIND, name))
    try:
        tensors = read_tensors(path)
        read_factors(model, tensors)
    except ValueError as error:
        raise ValueError(f"start_from: a run cannot start from the LoRA {name!r}: {error}") from None
    return with_lora(model, tensors, strength, apply_as)


def with_lora(model: Any, tensors: dict[str, Any], strength: float, apply_as: str) -> tuple[Any, str]:
    """The model with a LoRA, and how it was applied in words."""
    how = "" if strength == 1 else f", strength {strength:g}"
    if apply_as == "unmerged" or (apply_as == "auto" and merging_rounds(model)):
        return with_unmerged_lora(model, read_factors(model, tensors), strength), f"{how}, unmerged"
    return comfy.sd.load_lora_for_models(model, None, tensors, strength, 0)[0], how


def read_version(run: RunFolder, version: int, newest: int, use_ema: bool) -> bytes:
    """A version file, whole."""
    if version > newest:
        raise ValueError(f"version: run {run.name!r} has no version {version}; the newest is {newest}")
    try:
        return retry_sharing(run.version_file(version, use_ema).read_bytes)
    except FileNotFoundError:
        if use_ema:
            raise ValueError(f"use_ema: run {run.name!r} kept no averaged weights for version {version}; set ema above 0 in GRPO LoRA Trainer, or turn use_ema off") from None
        raise ValueError(f"the file of version {version} of run {run.name!r} is gone from {run.loras}") from None


NODES = [LiveLoRA]
