"""``python dev.py pictures``: the workflows' thumbnails and the help pages' pictures, from a real ComfyUI, trainer and browser."""

import argparse
import json
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
HELP_LIMIT, SIDEBAR_LIMIT = 40 * 1024, 80 * 1024  # bytes
RUN = "my_first_run"
RECOMMEND = """() => {
    const graph = window.app.graph, node = window.LiteGraph.createNode('StepwiseGRPO_RecommendedSettings');
    graph.add(node);
    node.pos = [0, 3000];
    node.setSize([420, 420]);
    graph.nodes.find(other => other.type === 'StepwiseGRPO_DemoModel').connect(0, node, 0);
    for (const [name, value] of [['iteration', 100], ['seed', 100]])
        for (const kind of ['PromptList', 'StepwiseSDESampler']) {
            const widget = graph.nodes.find(other => other.type === 'StepwiseGRPO_' + kind).widgets.find(w => w.name === name);
            if (widget && !(kind === 'PromptList' && name === 'seed')) widget.value = value;
        }
}"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py pictures", description="Make the thumbnails in workflows/ and the pictures in web/docs/images/ anew. Takes some minutes.")
    parser.add_argument("--iterations", type=int, default=10, help="how long the demo learns for its thumbnail (default 10)")
    options = parser.parse_args(arguments)
    pack = Path(os.environ.get("STEPWISE_PACK", ROOT))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, server_in(Path(folder)) as server:
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


def server_in(folder: Path) -> ComfyServer:
    """A ComfyUI with one model file, for Base Model to show."""
    (folder / "models").mkdir()
    (folder / "models" / "your_model.safetensors").touch()
    (folder / "paths.yaml").write_text(json.dumps({"pictures": {"diffusion_models": str(folder / "models")}}), "utf-8")  # JSON is YAML
    (folder / "user").mkdir()  # the page's settings are not the user's
    options = ("--extra-model-paths-config", str(folder / "paths.yaml"), "--user-directory", str(folder / "user"))
    return ComfyServer(COMFYUI, folder / "output", folder / "comfyui.log", options=options)


def wait_for(trainer: Trainer, server: ComfyServer) -> None:
    """Until the trainer is there the trainer node would not wait for it."""
    while not RunFolder(server.output, RUN).trainer_is_alive():
        if trainer.exit_code is not None:
            raise SystemExit(f"the trainer ended by itself:\n{trainer.tail()}")
        time.sleep(0.2)


def take(page: Any, server: ComfyServer, learnt: made.Learnt, compared: made.Compared) -> None:
    """All pictures, from one page."""
    open_page(page, server)
    press_run(page, server)
    save(shots.sidebar(page), HELP / "sidebar.jpg", SIDEBAR_LIMIT)
    page.set_viewport_size({"width": 1920, "height": 1080})
    there = page.evaluate("window.app.graph.nodes.map(node => node.type)")
    kinds = [name for name in server.object_info() if name.startswith("StepwiseGRPO_")]
    for kind in sorted(kinds, key=lambda kind: kind not in there):  # the others clear the canvas
        save(shots.node(page, kind), HELP / f"{kind}.jpg", HELP_LIMIT)
    for family in FAMILIES:
        thumbnail(family.name, with_title(shots.workflow(page, FOLDER / f"{family.name}.json"), family.title, thumbnails.SIDE))
    thumbnail("first_loop", thumbnails.first_loop(learnt, compared))
    thumbnail("stepwise_against_uniform", thumbnails.against(compared))


def press_run(page: Any, server: ComfyServer) -> None:
    """One more iteration of the first loop on the page, with Recommended Settings beside it."""
    run = RunFolder(server.output, RUN)
    version = run.latest()["version"] + 1
    drop(page, FOLDER / "first_loop.json")
    page.evaluate(RECOMMEND)
    page.get_by_role("button", name="Run", exact=True).first.click()
    wait_for_version(run, version, 300)
    while server.get("/queue")["queue_running"]:
        time.sleep(0.2)
    page.wait_for_timeout(2000)  # the page shows the last answers


def thumbnail(name: str, picture: Any) -> None:
    save(picture, FOLDER / f"{name}.jpg", thumbnails.LIMIT)
