"""Words an artist may type into ComfyUI's node search, for each node. Its title and its id are found without them."""

from dataclasses import fields
from typing import Any

from comfy_api.latest import io

LOOP = ["GRPO", "RL", "RLHF", "reinforcement learning", "fine-tune", "finetune", "learn"]
REWARD = ["reward", "score", "aesthetic", "RL", "RLHF", "GRPO"]
WORDS = {
    "StepwiseGRPO_BaseModel": [*LOOP, "load model", "diffusion model", "checkpoint loader", "train lora"],
    "StepwiseGRPO_DemoModel": [*LOOP, "toy model", "tiny model", "example", "test model", "no download"],
    "StepwiseGRPO_RecommendedSettings": [*LOOP, "defaults", "hyperparameters", "preset", "learning rate", "steps", "cfg"],
    "StepwiseGRPO_PromptList": [*LOOP, "prompts", "wildcards", "batch prompts", "multiple prompts", "text encode", "shuffle"],
    "StepwiseGRPO_StepwiseSDESampler": [*LOOP, "rollout", "trajectory", "KSampler", "stochastic sampler", "SDE", "group"],
    "StepwiseGRPO_StepwiseSDE": ["GRPO", "RL", "stochastic sampler", "SDE", "eta", "ancestral", "flow-grpo", "dance", "cps"],
    "StepwiseGRPO_TweediePreviewReward": [*LOOP, "reward", "score", "credit assignment", "advantage", "denoised preview", "x0"],
    "StepwiseGRPO_CreditVisualizer": [*LOOP, "heat map", "heatmap", "credit assignment", "chart", "plot", "curve", "reward", "score"],
    "StepwiseGRPO_GRPOLoRATrainer": [*LOOP, "train lora", "lora training", "trainer", "learning rate", "policy gradient", "PPO"],
    "StepwiseGRPO_LiveLoRA": [*LOOP, "load lora", "lora loader", "reload lora", "newest lora", "train lora"],
    "StepwiseGRPO_HeldOutPictures": [*LOOP, "validation", "evaluation", "test prompts", "sample images", "progress", "compare versions", "fixed seed"],
    "StepwiseGRPO_PlacementReward": [*REWARD, "position", "layout", "composition"],
    "StepwiseGRPO_WarmthReward": [*REWARD, "colour", "color", "temperature", "warm", "cool"],
    "StepwiseGRPO_ContrastReward": [*REWARD, "brightness", "lightness"],
    "StepwiseGRPO_CompressibilityReward": [*REWARD, "JPEG", "file size", "detail", "compression"],
}
ARE_KNOWN = "search_aliases" in {field.name for field in fields(io.Schema)}  # not in ComfyUI 0.3.75


def schema(node_id: str, **parts: Any) -> io.Schema:
    """``io.Schema`` with the node's search words, where ComfyUI knows such."""
    words = WORDS[node_id]
    return io.Schema(node_id=node_id, **({"search_aliases": words} if ARE_KNOWN else {}), **parts)
