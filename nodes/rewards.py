"""Rewards without a model or a download: measured from pixels."""

from comfy_api.latest import io

from ..training.rewards import make_reward
from .search_words import schema
from .sockets import CATEGORY, Reward

SCORES = "Scores for Tweedie Preview & Reward."


class PlacementReward(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_PlacementReward",
            display_name="Placement Reward (Stepwise GRPO demo)",
            category=CATEGORY,
            description="For the Demo Model: is the shape where the prompt says (top, bottom, left, right, centre)? From 0 to 1.",
            inputs=[],
            outputs=[Reward.Output("reward", display_name="REWARD", tooltip=SCORES)],
        )

    @classmethod
    def execute(cls) -> io.NodeOutput:
        return io.NodeOutput(make_reward({"reward": "placement"}))


class WarmthReward(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_WarmthReward",
            display_name="Warmth Reward (Stepwise GRPO)",
            category=CATEGORY,
            description="Mean red minus mean blue of the picture. A simple reward to try the loop on your own model.",
            inputs=[io.Combo.Input("toward", options=["warm", "cool"], default="warm", tooltip="Which way to push the colours.")],
            outputs=[Reward.Output("reward", display_name="REWARD", tooltip=SCORES)],
        )

    @classmethod
    def execute(cls, toward: str) -> io.NodeOutput:
        return io.NodeOutput(make_reward({"reward": "warmth", "toward": toward}))


class ContrastReward(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_ContrastReward",
            display_name="Contrast Reward (Stepwise GRPO)",
            category=CATEGORY,
            description="How much the brightness varies over the picture. A simple reward to try the loop on your own model.",
            inputs=[io.Combo.Input("toward", options=["more", "less"], default="more", tooltip="Whether to ask for more or for less contrast.")],
            outputs=[Reward.Output("reward", display_name="REWARD", tooltip=SCORES)],
        )

    @classmethod
    def execute(cls, toward: str) -> io.NodeOutput:
        return io.NodeOutput(make_reward({"reward": "contrast", "toward": toward}))


class CompressibilityReward(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_CompressibilityReward",
            display_name="Compressibility Reward (Stepwise GRPO)",
            category=CATEGORY,
            description="How small the picture gets as a JPEG file: 'more' asks for plain pictures, 'less' for rich detail. A classic first test of a reinforcement loop.",
            inputs=[io.Combo.Input("toward", options=["more", "less"], default="more", tooltip="more = smaller files, simpler pictures; less = bigger files, more detail.")],
            outputs=[Reward.Output("reward", display_name="REWARD", tooltip=SCORES)],
        )

    @classmethod
    def execute(cls, toward: str) -> io.NodeOutput:
        return io.NodeOutput(make_reward({"reward": "compressibility", "toward": toward}))


NODES = [PlacementReward, WarmthReward, ContrastReward, CompressibilityReward]
