"""Stepwise-Flow-GRPO for ComfyUI. Nothing is imported until ComfyUI asks, so that tests and the trainer do without it."""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    from .nodes import StepwiseGRPOExtension

    return StepwiseGRPOExtension()
