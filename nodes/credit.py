"""Credit Visualizer: which step earned what, as one picture."""

from comfy_api.latest import io, ui

from ..training.trajectory import Credit as CreditData
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
            description="Shows for each prompt how the best and the worst picture came about, what every step of every picture earned, and how the reward grew from noise to picture.",
            is_output_node=True,
            inputs=[Credit.Input("credit", tooltip="From Tweedie Preview & Reward.")],
            outputs=[io.Image.Output("image", display_name="IMAGE", tooltip="The figure, to save or to compare.")],
        )

    @classmethod
    def execute(cls, credit: CreditData) -> io.NodeOutput:
        image = draw(credit)
        return io.NodeOutput(image, ui=ui.PreviewImage(image, cls=cls))


NODES = [CreditVisualizer]
