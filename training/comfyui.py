"""How the trainer finds ComfyUI: the record that ComfyUI leaves in its output folder when it loads the pack.

No job and no experience ever names code, flags or absolute paths.
"""

import argparse
import logging
import os
import sys
import time
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
    arguments = record["argv"] if "argv" in record else device_flags()
    os.environ.update(visible_devices(arguments))
    sys.argv = [str(root / "main.py"), *arguments]


def visible_devices(arguments: list[str]) -> dict[str, str]:
    """The environment in which ComfyUI's main.py sees the graphics card that its command line chooses. It counts until torch uses one."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--cuda-device")
    parser.add_argument("--default-device", type=int)
    chosen, _ = parser.parse_known_args(arguments)
    if chosen.cuda_device == "all":
        return {}
    if chosen.cuda_device is not None:  # has the last word, as there
        devices = chosen.cuda_device
    elif chosen.default_device is not None:
        devices = ",".join(map(str, sorted(range(32), key=lambda number: (number != chosen.default_device, number))))
    else:
        return {}
    return {"CUDA_VISIBLE_DEVICES": devices, "HIP_VISIBLE_DEVICES": devices, "ASCEND_RT_VISIBLE_DEVICES": devices}


def device_flags() -> list[str]:
    """ComfyUI's command line where nobody told it: it does not find out by itself that there is no GPU."""
    import torch

    return [] if torch.cuda.is_available() or torch.backends.mps.is_available() else ["--cpu"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where ComfyUI is, on a command line."""
    parser.add_argument("--output", type=Path, help="ComfyUI's output folder (default: that of --comfy, or of the ComfyUI this pack lies in)")
    parser.add_argument("--comfy", type=Path, help="ComfyUI's folder (default: as ComfyUI recorded it when it loaded this pack)")


def use_comfyui(options: argparse.Namespace, wait: bool = True) -> Path:
    """Make ``import comfy`` and its model folders those of the ComfyUI that ``options`` mean; its output folder.

    ``wait``: for ComfyUI's first start, where it has left no record yet.
    """
    output = output_of(options)
    if not wait and options.comfy is None and read_place(output) is None:
        raise SystemExit(f"ComfyUI has left no record in {output}: start it once with this pack installed, or say --comfy FOLDER")
    record = wait_for_place(output, options.comfy)
    prepare(record, options.comfy)
    from .backends.loading import set_model_folders

    set_model_folders(record.get("folders", {}))
    return output


def output_of(options: argparse.Namespace) -> Path:
    """The output folder that ``options`` mean."""
    return options.output or (options.comfy / "output" if options.comfy else default_output())


def default_output() -> Path:
    """The output folder of the ComfyUI in whose custom_nodes this pack lies."""
    folder = Path(__file__).resolve().parent.parent
    if folder.parent.name == "custom_nodes":
        return folder.parent.parent / "output"
    raise SystemExit("This pack is not in a ComfyUI; say where one is with --comfy FOLDER, or its output with --output FOLDER")


def wait_for_place(output: Path, comfy: Path | None) -> dict[str, Any]:
    """ComfyUI's record, waiting for ComfyUI's first start if there is none; with --comfy it is not needed."""
    said = False
    while True:
        record = read_place(output)
        if record is not None or comfy is not None:
            return record or {}
        if not said:
            logging.info("waiting for ComfyUI: start it once with this pack installed (looking in %s)", output)
            logging.info("if it runs already, it has another output folder: take the command in its sidebar tab Stepwise GRPO, or say --output FOLDER")
            said = True
        time.sleep(1)
