"""The LoRA file that a run starts from, as data: which file, and whether it is still the same one. Standard library only."""

from pathlib import Path
from typing import Any

from .base import describe

KIND = "loras"


def describe_start(name: str, path: Path) -> dict[str, Any]:
    """What ``Job.start`` says about the file ``name`` below ComfyUI's loras."""
    found = describe(KIND, name, path)
    return {key: value for key, value in found.items() if key != "kind"}


def check_start(start: dict[str, Any], path: Path | None) -> None:
    """``ValueError`` unless ``path`` is still the file that ``start`` describes."""
    name = start["name"]
    if path is None or not path.is_file():
        raise ValueError(f"the LoRA {name!r} that this run started from is no longer in ComfyUI's {KIND!r} folders; put it back or start a new run")
    if describe_start(name, path) != start:
        raise ValueError(f"the LoRA {name!r} that this run started from has changed since then; put the old file back or start a new run")
