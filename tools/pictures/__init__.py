"""``python dev.py pictures``: the workflows' thumbnails and the help pages' pictures, from a real ComfyUI, trainer and browser."""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...training.job import RunFolder
from .. import browser
from ..local import COMFYUI
from ..page import browser_page, drop, open_page, wait_for_version
from ..server import ComfyServer, Trainer
from ..workflows import FOLDER, ROOT
from ..workflows.families import FAMILIES
from . import made, shots, thumbnails
from .drawing import save, with_title

HELP = ROOT / "web" / "docs" / "images"
HELP_LIMIT = 40 * 1024
RUN = "my_first_run"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py pictures", description="Make the thumbnails in workflows/ and the pictures in web/docs/images/ anew. Takes some minutes.")
    parser.add_argument("--iterations", type=int, default=12, help="how long the demo learns for its thumbnail (default 12)")
    options = parser.parse_args(arguments)
    pack = Path(os.environ.get("STEPWISE_PACK", ROOT))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ComfyServer(COMFYUI, Path(folder) / "output", Path(folder) / "comfyui.log") as server:
        shots.prepare(server)
        compared = made.compare(server, FOLDER / "stepwise_against_uniform.json")
        with Trainer(pack, server.output, Path(folder) / "trainer.log") as trainer:
            wait_for(trainer, server)
            learnt = made.learn(server, FOLDER / "first_loop.json", options.iterations)
            print(f"the demo's reward went from {learnt.rewards[0]:.2f} to {learnt.rewards[-1]:.2f}")
            with browser_page(browser.find() or "") as page:
                take(page, server, learnt, compared)
    print(f"pictures made in {time.monotonic() - began:.0f} s")
    return 0


def wait_for(trainer: Trainer, server: ComfyServer) -> None:
    """Until the trainer is there the trainer node would not wait for it."""
    while not RunFolder(server.output, RUN).trainer_is_alive():
        if trainer.exit_code is not None:
            raise SystemExit(f"the trainer ended by itself:\n{trainer.tail()}")
        time.sleep(0.2)


def take(page: Any, server: ComfyServer, learnt: made.Learnt, compared: made.Compared) -> None:
    """All pictures, from one page."""
    open_page(page, server)
    film, gains = press_run(page, server)
    for kind in (name for name in server.object_info() if name.startswith("StepwiseGRPO_")):
        save(shots.node(page, kind), HELP / f"{kind}.jpg", HELP_LIMIT)
    for family in FAMILIES:
        thumbnail(family.name, with_title(shots.workflow(page, FOLDER / f"{family.name}.json"), family.title, thumbnails.WIDTH))
    thumbnail("first_loop", thumbnails.first_loop(learnt, film, gains))
    thumbnail("stepwise_against_uniform", thumbnails.against(compared))


def thumbnail(name: str, picture: Any) -> None:
    save(picture, FOLDER / f"{name}.jpg", thumbnails.LIMIT)
