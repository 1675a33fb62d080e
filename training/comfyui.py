"""How the trainer finds ComfyUI: the record that ComfyUI leaves in its output folder when it loads the pack.

No job and no experience ever names code, flags or absolute paths.
"""

import sys
from pathlib import Path
from typing import Any

from .job import FOLDER, read_json, write_json


def place_path(output: Path) -> Path:
    return Path(output) / FOLDER / "comfyui.json"


def write_place(output: Path, root: Path, argv: list[str], folders: dict[str, list[str]], versions: dict[str, str]) -> None:
    """Leave {root, argv, python, folders, versions} for the trainer."""
    write_json(place_path(output), {"root": str(root), "argv": argv, "python": sys.executable, "folders": folders, "versions": versions})


def read_place(output: Path) -> dict[str, Any] | None:
    return read_json(place_path(output))


def prepare(record: dict[str, Any], comfy: Path | None) -> None:
    """Make ``import comfy`` mean the recorded ComfyUI with its command line. Call it before the first such import."""
    root = Path(comfy or record["root"])
    if not (root / "comfy" / "sd.py").is_file():
        raise SystemExit(f"{root} is not a ComfyUI folder; start ComfyUI once, or say --comfy FOLDER")
    sys.path.insert(0, str(root))
    sys.argv = [str(root / "main.py"), *(record["argv"] if "argv" in record else device_flags())]


def device_flags() -> list[str]:
    """ComfyUI's command line where nobody told it: it does not find out by itself that there is no GPU."""
    import torch

    return [] if torch.cuda.is_available() or torch.backends.mps.is_available() else ["--cpu"]
