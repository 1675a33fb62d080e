"""``python training``: the trainer process. Leave it running beside ComfyUI; closing it loses nothing.

A first word in the line means another command; see COMMANDS at the end of the file.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.pop(0)  # this folder, whose module names must not become top-level ones
sys.path.insert(0, str(Path(__file__).resolve().parent))
from bind import bind

sys.path.pop(0)
bind()

try:
    from stepwise_grpo.training import check, export, headless
    from stepwise_grpo.training.comfyui import add_options, use_comfyui
    from stepwise_grpo.training.run import run
    from stepwise_grpo.training.stop import Stop
except ImportError as error:
    raise SystemExit(f"{sys.executable} lacks a package ({error}). Use ComfyUI's Python, or start_trainer.sh / start_trainer.bat in this pack's folder, which finds it.") from None


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word in COMMANDS:
        COMMANDS[word](sys.argv[2:])
    else:
        serve(sys.argv[1:])


def serve(arguments: list[str]) -> None:
    """Train the LoRAs of all runs of an output folder until told to stop."""
    others = "".join(f"\n  python training {name:10} {command.__doc__}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python training",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Trains the LoRAs of all runs that ComfyUI's graphs feed. Stop it with Ctrl-C; nothing is lost.",
        epilog=f"other commands:{others}" if others else None,
    )
    add_options(parser)
    output = use_comfyui(parser.parse_args(arguments))
    stop = Stop()
    from stepwise_grpo.training.backends.comfy import open_policy

    run(output, open_policy, until=stop)
    logging.info("stopped; start it again at any time")


COMMANDS: dict[str, Callable[[list[str]], None]] = {"check": check.main, "export": export.main, "headless": headless.main}


if __name__ == "__main__":
    main()
