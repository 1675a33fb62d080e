"""GRPO LoRA Trainer: hands one iteration to the trainer process and waits for the new version of the LoRA."""

import json
from typing import Any

from comfy_api.latest import io, ui

from ..training.config import CHECKPOINTING, OPTIMISERS
from ..training.lora import TARGETS
from ..training.trajectory import Credit as CreditData
from ..training.trajectory import Trajectory as TrajectoryData
from . import validate
from .handover import hand_over
from .search_words import schema
from .sockets import AUTO, CATEGORY, Credit, Trajectory, advanced


class GRPOLoRATrainer(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_GRPOLoRATrainer",
            display_name="GRPO LoRA Trainer (Stepwise GRPO)",
            category=CATEGORY,
            description="Makes the good steps likelier and the bad ones rarer: one iteration of training, one new version of the LoRA. Needs the trainer process, which you start once beside ComfyUI.",
            is_output_node=True,
            inputs=inputs(),
            outputs=[
                io.Int.Output("version", display_name="version", tooltip="The newest version of the LoRA; 0 = none yet."),
                io.String.Output("lora_name", display_name="lora name", tooltip="Under this name the stock LoRA loaders list it."),
                io.String.Output("metrics", display_name="metrics", tooltip="Everything measured in this update, as JSON."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, run_name: str | None, target_pattern: str | None = "") -> bool | str:
        return validate.run(run_name, target_pattern)

    @classmethod
    def execute(cls, trajectory: TrajectoryData, credit: CreditData, run_name: str, wait: bool, **settings: Any) -> io.NodeOutput:
        result = hand_over(cls, trajectory, credit, run_name, settings, wait)
        return io.NodeOutput(result.version, result.lora_name, json.dumps(result.metrics), ui=ui.PreviewText(result.note))


def inputs() -> list[io.Input]:
    return [
        Trajectory.Input("trajectory", tooltip="From Stepwise SDE Sampler."),
        Credit.Input("credit", tooltip="From Tweedie Preview & Reward."),
        io.String.Input("run_name", default="my_first_run", tooltip="Name of the run and of its LoRA. The same name in Live LoRA. Another name starts a new run."),
        io.Float.Input("learning_rate", default=0.0, min=0.0, max=1.0, step=1e-6, round=False, tooltip="How far an update goes. 0 = as recommended for the model: 0.0025 for the Demo Model, about 0.0001 for big ones."),
        io.Float.Input("clip", default=0.0, min=0.0, max=0.99, step=1e-6, round=False, tooltip="How far a picture's likelihood may move in one iteration. 0 = as recommended for the model: 0.001 for the Demo Model, about 0.0001 for pictures of 512 px."),
        io.Float.Input("beta", default=0.0, min=0.0, max=10.0, step=1e-4, round=False, tooltip="Pull back to version 0: the base model, or the LoRA the run started from; 0 = none. Recommended Settings shows a value for the model; try 0.004 when pictures lose their shape."),
        io.Int.Input("updates", default=2, min=1, max=64, tooltip="Optimiser steps in this iteration; the pictures are split among them."),
        io.Int.Input("rank", default=0, min=0, max=1024, tooltip="Size of the LoRA. 0 = as recommended for the model. Fixed for a run."),
        io.Float.Input("alpha", default=0.0, min=0.0, max=4096.0, step=1.0, round=0.01, tooltip="Scale of the LoRA: alpha / rank. 0 = as recommended for the model. Fixed for a run."),
        io.Combo.Input("targets", options=[AUTO, *TARGETS], default=AUTO, tooltip="Which layers get a LoRA. auto = as recommended for the model. Fixed for a run."),
        io.Float.Input("ema", default=0.0, min=0.0, max=0.9999, step=1e-3, round=False, tooltip="Above 0 an averaged LoRA is saved beside each version, 0.9 for example. Live LoRA shows it with use_ema."),
        io.Int.Input("rows_per_call", default=0, min=0, max=4096, tooltip="At most this many states at once in the trainer. 0 = as many as fit; lower it when the trainer runs out of memory."),
        io.Boolean.Input("wait", default=True, tooltip="Wait until the new version is there. Off: go on at once; the trainer works in its own time."),
        advanced(io.String.Input("target_pattern", default="", tooltip="A regular expression for whole layer paths that takes the place of targets, for those who know their model. Empty = targets. Fixed for a run.")),
        advanced(io.Combo.Input("optimiser", options=list(OPTIMISERS), default="adamw", tooltip="adamw8bit keeps its two averages in 8 bits and needs the package bitsandbytes. Fixed for a run.")),
        advanced(io.Combo.Input("checkpointing", options=list(CHECKPOINTING), default="auto", tooltip="Compute blocks again in the backward pass instead of keeping them: a third slower, several times less memory, the same result. auto = on, but for the Demo Model.")),
        advanced(io.Boolean.Input("share_gpu", default=True, tooltip="Graph and trainer take turns on one graphics card: each frees its memory while the other works. Turn it off where both fit at once, or each has a card of its own.")),
    ]


NODES = [GRPOLoRATrainer]
