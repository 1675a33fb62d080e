"""``python dev.py bench memory|update|sizes|gpu|start``: what training costs, measured or computed, for people and as JSON."""

import argparse
import json
import sys
from pathlib import Path

from . import bench_gpu, bench_memory, bench_sizes, bench_start, bench_update
from .errors import SetupError
from .local import start_comfy

PARTS = {
    "memory": (bench_memory, "peak memory of one update with checkpointing off and on, side by side"),
    "update": (bench_update, "seconds of rollout and update on the demo model"),
    "sizes": (bench_sizes, "weights, memory and smallest card of the released models, computed"),
    "gpu": (bench_gpu, "rollout and update at full size with random weights; needs a CUDA card, or --small"),
    "start": (bench_start, "what the pack adds to ComfyUI's start"),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python dev.py bench", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    for name, (module, text) in PARTS.items():
        part = parts.add_parser(name, help=text, description=text)
        part.add_argument("--json", type=Path, help="write the figures to this file")
        module.add_options(part)
    options = parser.parse_args(arguments)
    # The demo as it is; the others with the attention that a graphics card computes with, also where there is none.
    if options.part != "start":
        start_comfy(*([] if options.part == "update" else ["--use-pytorch-cross-attention"]))
    try:
        result = PARTS[options.part][0].run(options)
    except SetupError as error:
        print(f"dev.py: {error}", file=sys.stderr)
        return 1
    text = json.dumps(result, indent=1, ensure_ascii=False)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text, "utf-8")
    elif options.part in ("memory", "update", "start"):
        print(text)
    return 1 if result.get("failed") else 0
