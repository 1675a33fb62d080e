"""``python dev.py workflows``: write workflows/*.json anew, from their descriptions here and the nodes of a running ComfyUI."""

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...training.job import write_whole
from ..local import COMFYUI
from ..server import ComfyServer
from . import demo, models
from .file import text_of

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "workflows"
WORKFLOWS = (demo.first_loop(), demo.stepwise_against_uniform(), *(models.workflow(family) for family in models.FAMILIES))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py workflows", description="Write the workflows that ComfyUI's template browser offers.")
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, ComfyServer(COMFYUI, Path(folder) / "output", Path(folder) / "comfyui.log") as server:
        info = server.object_info()
    for workflow in WORKFLOWS:
        file = FOLDER / f"{workflow.name}.json"
        write_whole(file, text_of(workflow, info).encode("utf-8"))
        print(f"{os.path.relpath(file, ROOT)} is up to date")
    return 0
