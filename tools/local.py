"""ComfyUI and the demo model in this process, without a server: for comparisons and checks."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..training.comfyui import device_flags, prepare
from ..training.prompts import prompt_lines

DEMO_FOLDER = Path(__file__).resolve().parent.parent / "demo"
COMFYUI = Path(os.environ.get("STEPWISE_COMFYUI", Path(__file__).resolve().parent.parent / ".comfyui"))


def start_comfy(*flags: str) -> None:
    """Make ``import comfy`` work in this process, on the GPU if there is one, with these further flags. Call it once, before such imports."""
    arguments = sys.argv
    prepare({"argv": [*device_flags(), *flags]}, COMFYUI)
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.cli_args  # noqa: F401  reads sys.argv once

    sys.argv = arguments


def demo_policy(seed: int = 0) -> Any:
    """The demo model with a fresh LoRA of the demo's size."""
    from ..training.backends.comfy import open_policy
    from ..training.base import DEMO
    from ..training.config import Job

    return open_policy(Job(base=DEMO, seed=seed))


def encode(text: str) -> list:
    """Conditioning entries of a text, as CLIPTextEncode gives them for the demo model."""
    from ..demo.words import encode as encode_words

    cond, pooled = encode_words(text)
    return [[cond, {"pooled_output": pooled}]]


def training_prompts() -> list[str]:
    """The prompts the demo trains on."""
    return prompt_lines((DEMO_FOLDER / "prompts.txt").read_text("utf-8"))


def held_out() -> list[tuple[str, int]]:
    """(prompt, seed) pairs the demo is measured on and never trains on."""
    data = json.loads((DEMO_FOLDER / "heldout.json").read_text("utf-8"))
    return list(zip(data["prompts"], data["seeds"]))
