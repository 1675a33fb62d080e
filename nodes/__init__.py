"""The pack's nodes: each is a schema and one call."""

import logging
import sys
from pathlib import Path

import folder_paths
from comfy_api.latest import ComfyExtension, io

from ..training.comfyui import write_place
from .versions import versions


class StepwiseGRPOExtension(ComfyExtension):
    """What ComfyUI asks for the nodes."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        leave_place()  # here and not in on_load, which ComfyUI 0.3.75 never calls
        add_routes()
        from . import base_model, credit, demo_model, held_out, live_lora, preview, prompts, recommended, rewards, rollout, sampler, trainer

        modules = (base_model, demo_model, recommended, prompts, rollout, sampler, preview, credit, trainer, live_lora, held_out, rewards)
        return [node for module in modules for node in module.NODES]


def add_routes() -> None:
    """The addresses that the page reads from, where there is a server."""
    from .routes import register

    register(getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None))


def leave_place() -> None:
    """Tell the trainer where this ComfyUI is. A full or read-only disk must not stop ComfyUI."""
    folders = {kind: list(paths) for kind, (paths, _) in folder_paths.folder_names_and_paths.items()}
    try:
        write_place(Path(folder_paths.get_output_directory()), Path(folder_paths.__file__).parent, sys.argv[1:], folders, versions())
    except OSError as error:
        logging.warning("Stepwise GRPO could not leave its note for the trainer in the output folder: %s", error)
