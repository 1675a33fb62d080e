"""Stepwise SDE Sampler: a group of pictures for every prompt, with every state on the way."""

import time
from typing import Any

from comfy_api.latest import io

from ..training.conditioning import checked
from ..training.core.schedule import Schedule
from ..training.core.transitions import LAWS
from ..training.rollout import rollout
from ..training.trajectory import Trajectory
from . import convert, validate
from .base_model import base_of
from .contact_sheet import contact_sheet
from .progress import THROUGH_NETWORK, Progress
from .recommended import law_of, row_of
from .sockets import AUTO, CATEGORY, COUNTS_UP, MAX_SEED
from .sockets import Trajectory as TrajectorySocket

LAW = "How a step adds noise. ddim (the paper's), cps and precise keep the noise level exactly right; flow and dance are those of Flow-GRPO and DanceGRPO."
ETA = "Strength of the noise. -1 takes the law's default: ddim 0.7, cps 0.8, precise 1.5, flow 0.7, dance 0.3; with law auto, what is recommended for the model. 0 adds none, then nothing can be learnt."


class StepwiseSDESampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StepwiseGRPO_StepwiseSDESampler",
            display_name="Stepwise SDE Sampler (Stepwise GRPO)",
            category=CATEGORY,
            description="Makes a group of pictures for every prompt. All start from the same noise; each takes its own random steps, and every step is recorded.",
            inputs=inputs(),
            outputs=[
                TrajectorySocket.Output("trajectory", display_name="TRAJECTORY", tooltip="Every state of every picture on its way from noise. For Tweedie Preview & Reward and GRPO LoRA Trainer."),
                io.Latent.Output("latent", display_name="LATENT", tooltip="The finished latents, one group after the other, for VAE Decode."),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
        )

    @classmethod
    def validate_inputs(cls, law: str | None, eta: float | None) -> bool | str:
        return validate.law_and_eta(law, eta)

    @classmethod
    def execute(cls, model: Any, positive: list, negative: list, latent_image: dict, sigmas: Any, group_size: int, cfg: float, law: str, eta: float, seed: int, floor_first: bool, rows_per_call: int) -> io.NodeOutput:
        convert.check_model(model)  # first: another kind of model has other sigmas, and their message would mislead
        base = base_of(model, cls)
        schedule = Schedule.of(sigmas.tolist(), *law_of(row_of(model, base), law, eta), floor_first)
        trajectory = roll_out(cls, model, base, positive, negative, latent_image, schedule, group_size, cfg, seed, rows_per_call)
        return io.NodeOutput(trajectory, convert.to_latent(model, trajectory.states[-1]))


def inputs() -> list[io.Input]:
    return [
        io.Model.Input("model", tooltip="A flow model behind Live LoRA."),
        io.Conditioning.Input("positive", tooltip="From Prompt List: every entry is a prompt with a group of its own. Other conditioning counts as one prompt."),
        io.Conditioning.Input("negative", tooltip="One negative prompt for all. Without effect at cfg 1."),
        io.Latent.Input("latent_image", tooltip="An empty latent. Only its width and height count, not its batch size."),
        io.Sigmas.Input("sigmas", tooltip="From a scheduler node, denoise 1. 10 steps are usual for training."),
        io.Int.Input("group_size", default=8, min=2, max=256, tooltip="Pictures a prompt. They are compared with each other, so at least 2; more give a steadier lesson and cost more time."),
        io.Float.Input("cfg", default=1.0, min=0.0, max=30.0, step=0.1, round=0.01, tooltip="Guidance, for the rollout and for the training. 1 is fastest: it needs no negative pass."),
        io.Combo.Input("law", options=[AUTO, *LAWS], default=AUTO, tooltip=f"{LAW} auto takes the law recommended for the model."),
        io.Float.Input("eta", default=-1.0, min=-1.0, max=4.0, step=0.05, round=0.01, tooltip=ETA),
        io.Int.Input("seed", default=0, min=0, max=MAX_SEED, control_after_generate=COUNTS_UP, tooltip="Decides all noise. Set the control to 'increment': with an unchanged seed the next Queue would do nothing."),
        io.Boolean.Input("floor_first", default=True, tooltip="Let the very first step of ddim and flow be random as well; layout is decided there. Off takes the literal formula, whose first step has no noise."),
        io.Int.Input("rows_per_call", default=0, min=0, max=4096, tooltip="At most this many pictures go through the network at once. 0 = as many as fit, by ComfyUI's own measure. Lower it when memory runs out; the noise stays the same."),
    ]


def roll_out(node: Any, model: Any, base: dict[str, Any], positive: list, negative: list, latent: dict, schedule: Schedule, group_size: int, cfg: float, seed: int, rows_per_call: int) -> Trajectory:
    """Check everything, say the cost, then sample."""
    if group_size < 2:
        raise ValueError(f"group_size must be at least 2, because the pictures of a group are compared with each other; got {group_size}")
    prompts, negative = convert.prompts_of(positive), checked(negative, "negative")
    shape = convert.latent_shape(model, latent)
    calls = len(prompts) + (schedule.steps - 1) * len(prompts) * group_size
    progress = Progress(node, calls, THROUGH_NETWORK)
    progress.announce(f"{len(prompts)} prompts x {group_size} pictures x {schedule.steps} steps: {calls} {THROUGH_NETWORK}")
    rows_per_call = rows_per_call or convert.rows_of_rollout(model, shape, cfg)
    velocity = convert.velocity_of(model, prompts, negative, cfg, rows_per_call, progress.tick)
    sheet = contact_sheet(model, schedule.times, len(prompts), group_size, progress)
    start = time.perf_counter()
    path = rollout(velocity, schedule, [prompt.index for prompt in prompts], group_size, shape, seed, sheet)
    seconds = time.perf_counter() - start
    progress.announce(f"{len(prompts) * group_size} pictures in {seconds:.1f} s ({calls} {THROUGH_NETWORK})")
    return Trajectory(path.states, path.velocities, schedule, prompts, negative, cfg, seed, convert.origin_of(model), base, path.evaluations, seconds, row_of(model, base).name)


NODES = [StepwiseSDESampler]
