"""Credit Visualizer: which step earned what, on the node and as one picture."""

from pathlib import Path
from typing import Any

import folder_paths
from comfy_api.latest import io

from ..training.trajectory import Credit as CreditData
from .credit_view import store
from .figure import draw
from .search_words import schema
from .sockets import CATEGORY, Credit


class CreditVisualizer(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_CreditVisualizer",
            display_name="Credit Visualizer (Stepwise GRPO)",
            category=CATEGORY,
            description="Shows for each prompt what every step of every picture earned, how the reward grew from noise to picture, and the clean estimates on the way. Point at a step to see it, click to keep it.",
            is_output_node=True,
            inputs=[Credit.Input("credit", tooltip="From Tweedie Preview & Reward.")],
            outputs=[io.Image.Output("image", display_name="IMAGE", tooltip="The figure, to save or to compare.")],
        )

    @classmethod
    def execute(cls, credit: CreditData) -> io.NodeOutput:
        return io.NodeOutput(draw(credit), ui=shown(credit))


def shown(credit: CreditData) -> dict[str, list[Any]]:
    """What the page gets: the id of the stored view; where the disk refuses, the reason as the node's text. The figure comes in any case."""
    try:
        return {"stepwise_grpo_credit": [store(credit, Path(folder_paths.get_output_directory()))]}
    except OSError as error:
        reason = error.strerror or str(error)
        return {"stepwise_grpo_credit": [], "text": [f"The view could not be stored in the output folder ({reason}), so the node shows nothing. The IMAGE output is complete. Make room and press Run again."]}


NODES = [CreditVisualizer]
