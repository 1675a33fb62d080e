"""Demo Model: the small built-in model, to see the whole loop on any computer."""

from comfy_api.latest import io

from ..training.base import DEMO
from .convert import with_base
from .search_words import schema
from .sockets import CATEGORY


class DemoModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema(
            node_id="StepwiseGRPO_DemoModel",
            display_name="Demo Model (Stepwise GRPO)",
            category=CATEGORY,
            description="A tiny flow model that draws shapes (circle, square, triangle, cross) in 128 x 128 pixels. It comes with the pack, needs no download, and runs on any computer. It often puts the shape in the wrong place; fine-tuning repairs that.",
            inputs=[],
            outputs=[
                io.Model.Output("demo_model", display_name="MODEL", tooltip="The flow model, of the SD3 kind. Put Live LoRA behind it."),
                io.Clip.Output("demo_clip", display_name="CLIP", tooltip="Understands: kind, colour, size, place and background of a shape."),
                io.Vae.Output("demo_vae", display_name="VAE", tooltip="Turns latents of an eighth of the size into pictures."),
            ],
        )

    @classmethod
    def execute(cls) -> io.NodeOutput:
        from ..demo.comfy_model import load_demo_clip, load_demo_model, load_demo_vae
        from ..demo.look import teach_latent_preview

        model, vae = load_demo_model(), load_demo_vae()
        teach_latent_preview(model.model.latent_format, vae.first_stage_model)
        return io.NodeOutput(with_base(model, DEMO), load_demo_clip(), vae)


NODES = [DemoModel]
