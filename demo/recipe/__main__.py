"""Makes and measures the demo model. From the repository's root:

    python demo/recipe train [--seconds 900] [--codec-seconds 170] [--go-on]     writes demo/weights/
    python demo/recipe measure [--cfg 1] [--count 200] [--json FILE] [--sheet FILE.png]

ComfyUI is looked for in .comfyui, or where COMFYUI_PATH points.
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    arguments = _arguments()
    sys.path[0] = str(ROOT / "training")  # instead of this folder
    from bind import bind

    bind()
    _start_comfy()
    from stepwise_grpo.demo.recipe import commands

    if arguments.command == "train":
        commands.train_all(arguments.seconds, arguments.codec_seconds, arguments.go_on)
        return
    figures = commands.measure_held_out(arguments.count, arguments.cfg, arguments.steps, arguments.sheet)
    print(json.dumps(figures, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python demo/recipe", description="Makes and measures the demo model.")
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="codec and flow model, into demo/weights")
    train.add_argument("--seconds", type=float, default=900, help="for the flow model, on 2 cores")
    train.add_argument("--codec-seconds", type=float, default=170, help="for the codec's decoder")
    train.add_argument("--go-on", action="store_true", help="start from the weights that are there, with a fresh learning rate")
    measure = commands.add_parser("measure", help="held-out captions, through ComfyUI's own sampling")
    measure.add_argument("--cfg", type=float, default=1.0)
    measure.add_argument("--steps", type=int, default=10)
    measure.add_argument("--count", type=int, default=200, help="pictures")
    measure.add_argument("--json", type=Path)
    measure.add_argument("--sheet", type=Path, help="write a contact sheet (PNG)")
    return parser.parse_args()


def _start_comfy() -> None:
    """Put ComfyUI on the path, on the CPU: its options are read at the first import."""
    sys.path.insert(0, os.environ.get("COMFYUI_PATH", str(ROOT / ".comfyui")))
    sys.argv = [sys.argv[0], "--cpu"]
    import comfy.options

    comfy.options.enable_args_parsing()


if __name__ == "__main__":
    main()
