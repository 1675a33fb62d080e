"""Live LoRA: the newest version of a run on the model, fresh at every Queue."""

from pathlib import Path
from typing import Any

import comfy.sd
import folder_paths
import safetensors.torch
from comfy_api.latest import io

from ..training.config import Origin
from ..training.job import RunFolder, all_runs, digest_of, retry_sharing
from . import convert, validate
from .progress import Progress
from .sockets import CATEGORY

NEWEST = -1


class LiveLoRA(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StepwiseGRPO_LiveLoRA",
            display_name="Live LoRA (Stepwise GRPO)",
            category=CATEGORY,
            description="Puts the LoRA that a run is training on the model. With version -1 every Queue takes the newest one, without a refresh or a restart.",
            inputs=[
                io.Model.Input("model", tooltip="From Base Model or Demo Model."),
                io.String.Input("run_name", default="my_first_run", tooltip="The run whose LoRA to use: the same name as in GRPO LoRA Trainer. A run that has no version yet leaves the model as it is."),
                io.Int.Input("version", default=NEWEST, min=NEWEST, max=999999, tooltip="-1 = the newest version, 0 = the model without LoRA, otherwise that version: all are kept."),
                io.Float.Input("strength", default=1.0, min=-4.0, max=4.0, step=0.05, round=0.01, tooltip="Strength of the LoRA. Must be 1 for training; other values are for looking."),
                io.Boolean.Input("use_ema", default=False, tooltip="Use the averaged weights of a version, where the run keeps them (ema above 0). For looking, not for training."),
            ],
            outputs=[
                io.Model.Output("live_model", display_name="MODEL", tooltip="The model with the LoRA. It remembers run and version for the trainer."),
                io.Int.Output("applied_version", display_name="version", tooltip="The version that was applied; 0 = none."),
                io.String.Output("note", display_name="note", tooltip="What was applied, in words."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, run_name: str | None) -> bool | str:
        return validate.run_name(run_name)

    @classmethod
    def fingerprint_inputs(cls, run_name: str | None = None, version: int | None = NEWEST, use_ema: bool | None = False, **_: Any) -> str:
        return fingerprint(output(), run_name, version, use_ema)

    @classmethod
    def execute(cls, model: Any, run_name: str, version: int, strength: float, use_ema: bool) -> io.NodeOutput:
        live, applied, note = apply(model, RunFolder(output(), run_name), version, strength, use_ema)
        Progress(cls, 1).say(note)
        return io.NodeOutput(live, applied, note)


def output() -> Path:
    return Path(folder_paths.get_output_directory())


def fingerprint(output: Path, run_name: str | None, version: int | None, use_ema: bool | None) -> str:
    """Changes exactly when another LoRA would be applied. A linked run name is None here, so all runs count. Never raises."""
    if version == 0:
        return "0"
    try:
        runs = all_runs(output) if run_name is None else [RunFolder(output, run_name)]
        if run_name is not None and version is not None and version > 0:
            return f"{version} {digest_of(retry_sharing(runs[0].version_file(version, bool(use_ema)).read_bytes))}"
        return "; ".join(f"{run.name} {latest['version']} {latest['digest']}" for run in runs if (latest := run.latest()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"unreadable: {type(error).__name__}"


def apply(model: Any, run: RunFolder, version: int, strength: float, use_ema: bool) -> tuple[Any, int, str]:
    """The model with a version of the run, the version, and what was done in words."""
    known = 1 + convert.origin_of(model).loras
    newest = (run.latest() or {}).get("version", 0)
    wanted = newest if version == NEWEST else version
    if newest == 0 or wanted == 0:
        live = model.clone()
        convert.mark_origin(model, live, Origin(run=run.name, strength=strength, loras=known))
        return live, 0, "the model without LoRA (version 0)" if newest else f"run {run.name!r} has no version yet: the model without LoRA"
    data = read_version(run, wanted, newest, use_ema)
    live, _ = comfy.sd.load_lora_for_models(model, None, safetensors.torch.load(data), strength, 0)
    convert.mark_origin(model, live, Origin(run=run.name, version=wanted, digest=digest_of(data), strength=strength, loras=known, ema=use_ema))
    return live, wanted, f"{run.name} version {wanted}" + (" (averaged)" if use_ema else "") + ("" if strength == 1 else f", strength {strength:g}")


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
