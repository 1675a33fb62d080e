"""``python dev.py locales``: write locales/en/nodeDefs.json anew, from the schemas of the nodes.

ComfyUI's page prefers that file's texts over the nodes' own, so nobody writes it by hand. The other languages are translations of it.
``python dev.py locales --check`` writes nothing and fails where it is out of date.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..training.job import write_whole
from .local import start_comfy

FOLDER = Path(__file__).resolve().parent.parent / "locales"
ENGLISH = FOLDER / "en" / "nodeDefs.json"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py locales", description="Write locales/en/nodeDefs.json anew from the nodes' schemas.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the file is out of date")
    check = parser.parse_args(arguments).check
    data = as_json({schema.node_id: texts(schema) for schema in schemas()})
    if check:
        current = ENGLISH.is_file() and ENGLISH.read_text("utf-8") == data
        print(f"{ENGLISH} is {'up to date' if current else 'out of date; run: python dev.py locales'}")
        return 0 if current else 1
    write_whole(ENGLISH, data.encode("utf-8"))
    print(f"{ENGLISH} is up to date")
    return 0


def schemas() -> list[Any]:
    """The schema of every node, as this ComfyUI sees it."""
    start_comfy()
    import folder_paths

    from ..nodes import StepwiseGRPOExtension

    with tempfile.TemporaryDirectory() as output:
        folder_paths.set_output_directory(output)  # loading the nodes leaves a note for the trainer there
        nodes = asyncio.run(StepwiseGRPOExtension().get_node_list())
    return [node.GET_SCHEMA() for node in nodes]


def texts(schema: Any) -> dict[str, Any]:
    """A node's texts as ComfyUI's page looks them up: inputs by their id, outputs by their place."""
    inputs = {part.id: {"name": part.display_name or part.id, "tooltip": part.tooltip} for part in schema.inputs}
    outputs = {str(place): {"name": part.display_name or part.id, "tooltip": part.tooltip} for place, part in enumerate(schema.outputs)}
    return {"display_name": schema.display_name, "description": schema.description, "inputs": inputs, "outputs": outputs}


def as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, indent=4) + "\n"
