"""``python training``: the trainer process. Leave it running beside ComfyUI; closing it loses nothing."""

import argparse
import logging
import signal
import sys
import time
from pathlib import Path

sys.path.pop(0)  # this folder, whose module names must not become top-level ones
sys.path.insert(0, str(Path(__file__).resolve().parent))
from bind import bind  # noqa: E402

sys.path.pop(0)
bind()

from stepwise_grpo.training.comfyui import prepare, read_place  # noqa: E402
from stepwise_grpo.training.run import run  # noqa: E402


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python training", description="Trains the LoRAs of all runs that ComfyUI's graphs feed. Stop it with Ctrl-C; nothing is lost.")
    parser.add_argument("--output", type=Path, help="ComfyUI's output folder (default: the one beside the ComfyUI this pack lies in)")
    parser.add_argument("--comfy", type=Path, help="ComfyUI's folder (default: as ComfyUI recorded it when it loaded this pack)")
    return parser.parse_args(arguments)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    options = parse(sys.argv[1:])
    output = options.output or default_output()
    record = wait_for_place(output, options.comfy)
    prepare(record, options.comfy)
    stop = Stop()
    from stepwise_grpo.training.backends.comfy import open_policy
    from stepwise_grpo.training.backends.loading import set_model_folders

    set_model_folders(record.get("folders", {}))
    run(output, open_policy, until=stop)
    logging.info("stopped; start it again at any time")


def default_output() -> Path:
    """The output folder of the ComfyUI in whose custom_nodes this pack lies."""
    folder = Path(__file__).resolve().parent.parent
    if folder.parent.name == "custom_nodes":
        return folder.parent.parent / "output"
    raise SystemExit("This pack does not lie in a ComfyUI, so say where the output folder is: python training --output FOLDER")


def wait_for_place(output: Path, comfy: Path | None) -> dict:
    """ComfyUI's record, waiting for ComfyUI's first start if there is none; with --comfy it is not needed."""
    said = False
    while True:
        record = read_place(output)
        if record is not None or comfy is not None:
            return record or {}
        if not said:
            logging.info("waiting for ComfyUI: start it once with this pack installed (looking in %s)", output)
            said = True
        time.sleep(1)


class Stop:
    """True once Ctrl-C or a termination was asked for: the running update is finished first, a second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.asked = False
        for name, number in signal.Signals.__members__.items():
            if name in ("SIGINT", "SIGTERM", "SIGBREAK"):
                signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise SystemExit(1)
        self.asked = True
        logging.info("stopping after the running update (Ctrl-C again to stop at once; nothing is lost)")

    def __call__(self) -> bool:
        return self.asked


if __name__ == "__main__":
    main()
