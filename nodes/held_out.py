"""Held-Out Pictures: one picture of a fixed seed for each prompt that is not trained on, filed under the LoRA's version."""

from typing import Any

from comfy_api.latest import io

from .looking import look_at
from .search_words import schema
from .sockets import CATEGORY, MAX_SEED, Reward


class HeldOutPictures(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_HeldOutPictures",
            display_name="Held-Out Pictures (Stepwise GRPO)",
            category=CATEGORY,
            description="Shows how the run as a whole does: one picture of a fixed seed for each of a few prompts that it is not trained on, without random steps, scored and kept for every version of the LoRA.",
            is_output_node=True,
            inputs=inputs(),
            outputs=[
                io.Image.Output("pictures", display_name="pictures", tooltip="One picture a prompt. Between the versions that 'every' names: the newest kept ones, small."),
                io.Float.Output("reward_mean", display_name="reward", tooltip="Mean reward of the pictures; 0 without a reward."),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
        )

    @classmethod
    def execute(
        cls, model: Any, vae: Any, positive: list, negative: list, latent_image: dict, sigmas: Any, cfg: float, seed: int, every: int, rows_per_call: int, reward: Any = None
    ) -> io.NodeOutput:
        shown = look_at(cls, model, vae, positive, negative, latent_image, sigmas.tolist(), cfg, seed, every, rows_per_call, reward)
        return io.NodeOutput(shown.pictures, shown.reward_mean, ui=shown.ui)


def inputs() -> list[io.Input]:
    return [
        io.Model.Input("model", tooltip="The model behind Live LoRA, as it goes into Stepwise SDE Sampler."),
        io.Vae.Input("vae", tooltip="The model's VAE; it decodes the pictures."),
        io.Conditioning.Input("positive", tooltip="Prompts that the run is not trained on, best from a Prompt List of its own whose 'iteration' stays fixed: every entry is a prompt with one picture."),
        io.Conditioning.Input("negative", tooltip="One negative prompt for all. Without effect at cfg 1."),
        io.Latent.Input("latent_image", tooltip="An empty latent. Only its width and height count, not its batch size."),
        io.Sigmas.Input("sigmas", tooltip="From a scheduler node, denoise 1. As many steps as you would take for a good picture; more than in the rollout is usual."),
        io.Float.Input("cfg", default=1.0, min=0.0, max=30.0, step=0.1, round=0.01, tooltip="Guidance. Take the value you train with, or the one you will use the LoRA with."),
        io.Int.Input("seed", default=0, min=0, max=MAX_SEED, control_after_generate=False, tooltip="Decides the noise that the pictures start from. Keep it for the whole run: only pictures of one seed can be compared."),
        io.Int.Input("every", default=1, min=1, max=10000, tooltip="Look only at versions that this number divides; 10 costs a tenth. Between them the node gives out the newest look it has."),
        io.Int.Input("rows_per_call", default=0, min=0, max=4096, tooltip="At most this many pictures at once, in the network and in the VAE. 0 = as many as fit, by ComfyUI's own measure. Lower it when memory runs out."),
        Reward.Input("reward", optional=True, tooltip="Scores the pictures: the reward you train with, or another one that you did not train on."),
    ]


NODES = [HeldOutPictures]
