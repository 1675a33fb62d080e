"""GRPO LoRA Trainer: hands one iteration to the trainer process and waits for the new version of the LoRA."""

import json

from comfy_api.latest import io, ui

from ..training.config import Job, UpdateSettings
from ..training.job import check_run_name
from ..training.lora import TARGETS
from ..training.trajectory import Credit as CreditData
from ..training.trajectory import Trajectory as TrajectoryData
from .handover import hand_over
from .sockets import CATEGORY, Credit, Trajectory


class GRPOLoRATrainer(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
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
    def validate_inputs(cls, run_name: str | None) -> bool | str:
        try:
            return run_name is None or bool(check_run_name(run_name))
        except ValueError as error:
            return str(error)

    @classmethod
    def execute(
        cls, trajectory: TrajectoryData, credit: CreditData, run_name: str, learning_rate: float, clip: float, beta: float, updates: int, rank: int, alpha: float, targets: str, ema: float, rows_per_call: int, wait: bool
    ) -> io.NodeOutput:
        job = lambda base: Job(base=base, targets=targets, rank=rank, alpha=alpha)
        settings = UpdateSettings(learning_rate=learning_rate, clip=clip, beta=beta, updates=updates, ema=ema, rows_per_call=rows_per_call)
        result = hand_over(cls, trajectory, credit, run_name, job, settings, wait)
        return io.NodeOutput(result.version, result.lora_name, json.dumps(result.metrics), ui=ui.PreviewText(result.note))


def inputs() -> list[io.Input]:
    return [
        Trajectory.Input("trajectory", tooltip="From Stepwise SDE Sampler."),
        Credit.Input("credit", tooltip="From Tweedie Preview & Reward."),
        io.String.Input("run_name", default="my_first_run", tooltip="Name of the run and of its LoRA. The same name in Live LoRA. Another name starts a new run."),
        io.Float.Input("learning_rate", default=2e-4, min=1e-6, max=1.0, step=1e-6, round=False, tooltip="How far an update goes. 0.0025 suits the Demo Model; 0.0001 to 0.0003 big models."),
        io.Float.Input("clip", default=1e-4, min=1e-6, max=0.99, step=1e-6, round=False, tooltip="How far a picture's likelihood may move in one iteration. 0.001 suits the Demo Model, 0.0001 pictures of 512 px."),
        io.Float.Input("beta", default=0.0, min=0.0, max=10.0, step=1e-4, round=False, tooltip="Pull back to the base model; 0 = none. Try 0.004 when pictures lose their shape."),
        io.Int.Input("updates", default=2, min=1, max=64, tooltip="Optimiser steps in this iteration; the pictures are split among them."),
        io.Int.Input("rank", default=16, min=1, max=1024, tooltip="Size of the LoRA. Fixed for a run."),
        io.Float.Input("alpha", default=32.0, min=0.01, max=4096.0, step=1.0, round=0.01, tooltip="Scale of the LoRA: alpha / rank. Fixed for a run."),
        io.Combo.Input("targets", options=list(TARGETS), default="attention", tooltip="Which layers get a LoRA. Fixed for a run."),
        io.Float.Input("ema", default=0.0, min=0.0, max=0.9999, step=1e-3, round=False, tooltip="Above 0 an averaged LoRA is saved beside each version, 0.9 for example. Live LoRA shows it with use_ema."),
        io.Int.Input("rows_per_call", default=64, min=1, max=4096, tooltip="At most this many states at once in the trainer. Lower it when the trainer runs out of memory."),
        io.Boolean.Input("wait", default=True, tooltip="Wait until the new version is there. Off: go on at once; the trainer works in its own time."),
    ]


NODES = [GRPOLoRATrainer]
