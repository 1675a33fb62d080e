"""Tweedie Preview & Reward: what every state would have become, and what each step earned."""

from typing import Any

from comfy_api.latest import io
from torch import Tensor

from ..training.config import PreviewSettings
from ..training.core.advantages import SCHEMES
from ..training.policy import Reward as RewardLike
from ..training.preview import preview, work
from ..training.trajectory import Credit as CreditData
from ..training.trajectory import Trajectory as TrajectoryData
from . import convert
from .base_model import base_of
from .contact_sheet import picture_sheet
from .progress import THROUGH_BOTH, THROUGH_NETWORK, Progress
from .sockets import CATEGORY, Credit, Reward, Trajectory

SCHEME = (
    "How rewards become credit. centred (default): each step is compared over the group; paper: as published; to_go: all that follows a step; "
    "per_step: every step equally loud; paper_all_steps: as printed, over all steps; uniform: the final reward for all steps, as Flow-GRPO does; uniform_weighted: the same, weighted by noise."
)


class TweediePreviewReward(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="StepwiseGRPO_TweediePreviewReward",
            display_name="Tweedie Preview & Reward (Stepwise GRPO)",
            category=CATEGORY,
            description="Estimates the clean picture at every step, scores it, and so finds out which step made the picture better or worse.",
            inputs=inputs(),
            outputs=[
                Credit.Output("credit", display_name="CREDIT", tooltip="What each step of each picture earned. For GRPO LoRA Trainer and Credit Visualizer."),
                io.Image.Output("previews", display_name="previews", tooltip="Small clean estimates: all pictures at the first state, then at the second, and so on."),
                io.Image.Output("pictures", display_name="pictures", tooltip="The finished pictures, one group after the other."),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
        )

    @classmethod
    def execute(cls, model: Any, vae: Any, trajectory: TrajectoryData, reward: RewardLike, credit_scheme: str, substeps: int, by_time: bool, spacing: float, rows_per_call: int) -> io.NodeOutput:
        convert.check_model(model)
        rows_per_call = rows_per_call or convert.rows_of_rollout(model, list(trajectory.states.shape[2:]), trajectory.cfg)
        settings = PreviewSettings(scheme=credit_scheme, substeps=substeps, by_time=by_time, spacing=spacing, rows_per_call=rows_per_call)
        credit, pictures = score(cls, model, vae, trajectory, reward, settings)
        return io.NodeOutput(credit, credit.thumbnails[credit.rewards.isfinite()], pictures)


def inputs() -> list[io.Input]:
    return [
        io.Model.Input("model", tooltip="The same model as in Stepwise SDE Sampler, behind the same Live LoRA."),
        io.Vae.Input("vae", tooltip="The model's VAE; it decodes the estimates."),
        Trajectory.Input("trajectory", tooltip="From Stepwise SDE Sampler."),
        Reward.Input("reward", tooltip="What counts as a better picture."),
        io.Combo.Input("credit_scheme", options=list(SCHEMES), default="centred", tooltip=SCHEME),
        io.Int.Input("substeps", default=2, min=1, max=64, tooltip="Steps from a state to its clean estimate. 1 costs nothing and is blurry at the start; 2 is a good start; the paper takes 5."),
        io.Boolean.Input("by_time", default=False, tooltip="Take fewer substeps where little noise is left. Saves about half of them."),
        io.Float.Input("spacing", default=1.0, min=1.0, max=10.0, step=0.1, round=0.01, tooltip="Above 1 more of the substeps lie at high noise. 1 spaces them evenly."),
        io.Int.Input("rows_per_call", default=0, min=0, max=4096, tooltip="At most this many pictures at once, in the network and in the VAE. 0 = as many as fit, by ComfyUI's own measure. Lower it when memory runs out."),
    ]


def score(node: Any, model: Any, vae: Any, trajectory: TrajectoryData, reward: RewardLike, settings: PreviewSettings) -> tuple[CreditData, Tensor]:
    """Preview and score on the graph's model, with progress."""
    if convert.origin_of(model) != trajectory.origin or base_of(model, node) != trajectory.base:
        raise ValueError("model is not the one that made the trajectory: connect the same MODEL, behind the same Live LoRA, to the sampler and to this node")
    scored, network = work(trajectory, settings)
    progress = Progress(node, scored + network, THROUGH_BOTH)
    progress.say(f"{scored} previews to score: {network} {THROUGH_NETWORK}, {scored} through the VAE")
    sheet = picture_sheet(trajectory.schedule.steps, len(trajectory.prompts), trajectory.group_size, progress)
    velocity = convert.velocity_of(model, trajectory.prompts, trajectory.negative, trajectory.cfg, settings.rows_per_call, progress.tick)

    def on_batch(states: Tensor, rows: Tensor, thumbnails: Tensor) -> None:
        progress.tick(len(rows))
        sheet(states, rows, thumbnails)

    credit, pictures = preview(trajectory, velocity, convert.decoder(model, vae), reward, settings, on_batch)
    progress.announce(summary(credit))
    return credit, pictures


def summary(credit: CreditData) -> str:
    final, groups = credit.rewards[-1], len(credit.texts)
    line = f"reward {final.mean():.3f}, spread {final.std(correction=0):.3f}"
    if credit.zero_variance_groups:
        line += f"; in {credit.zero_variance_groups} of {groups} groups all pictures scored the same, so they teach nothing"
    return line


NODES = [TweediePreviewReward]
