"""The three sockets of this pack. Their names can never change: workflows hold them."""

from comfy_api.latest import io

Trajectory = io.Custom("STEPWISE_GRPO_TRAJECTORY")
Credit = io.Custom("STEPWISE_GRPO_CREDIT")
Reward = io.Custom("STEPWISE_GRPO_REWARD")

CATEGORY = "Stepwise GRPO"
MAX_SEED = 0xFFFFFFFFFFFFFFFF
# The control of a fresh node's widget: newer ComfyUI lets us choose it, older ComfyUI begins with randomize.
COUNTS_UP = io.ControlAfterGenerate.increment if hasattr(io, "ControlAfterGenerate") else True
AUTO = "auto"  # a combo's value for "as recommended for the model"


def advanced(widget: io.Input) -> io.Input:
    """The widget, folded away where the page can. An argument of its own exists only in newer ComfyUI."""
    widget.extra_dict = {**(widget.extra_dict or {}), "advanced": True}
    return widget
