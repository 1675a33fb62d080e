"""ComfyUI's page in a Chromium without a window: for the browser tests and the pictures of the help pages."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..training.job import RunFolder
from .server import ComfyServer

CHROMIUM = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# The page takes its loading mask away at the end of an animation, which a busy headless browser may never report.
NO_ANIMATIONS = """addEventListener('DOMContentLoaded', () => {
    const style = document.createElement('style');
    style.textContent = '* { animation: none !important }';
    document.head.append(style);
})"""
DROP = """async ([name, data]) => {
    const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], name, {type: 'application/json'}));
    for (const kind of ['dragenter', 'dragover', 'drop'])
        document.querySelector('#graph-canvas').dispatchEvent(
            new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: transfer, clientX: 700, clientY: 500}));
}"""


@contextmanager
def browser_page(browser_path: str) -> Iterator[Any]:
    """An empty page of 1920 x 1080 px in a browser of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=CHROMIUM)
        context = browser.new_context(viewport={"width": 1920, "height": 1080})  # a test may open a second page in it
        context.set_default_timeout(120_000)
        context.add_init_script(NO_ANIMATIONS)
        yield context.new_page()
        browser.close()


def open_page(page: Any, server: ComfyServer) -> None:
    """Open ComfyUI and wait until it can be used."""
    server.post("/settings/Comfy.TutorialCompleted", True)  # else the templates a newcomer is greeted with may cover the page at any moment
    page.goto(server.url)
    page.wait_for_function("window.app && window.app.graph && document.querySelector('#graph-canvas')")
    page.wait_for_load_state("networkidle")


def drop(page: Any, file: Path) -> None:
    """Drop a workflow on the canvas, as an artist does, and wait until its nodes are there."""
    page.evaluate(DROP, [file.name, base64.b64encode(file.read_bytes()).decode()])
    count = len(json.loads(file.read_text("utf-8"))["nodes"])
    page.wait_for_function(f"window.app.graph.nodes.length === {count}")


def wait_for_version(run: RunFolder, version: int, seconds: float) -> None:
    """Wait until the trainer has written a version of the LoRA."""
    deadline = time.monotonic() + seconds
    while (run.latest() or {}).get("version", 0) < version:
        assert time.monotonic() < deadline, f"no version {version} after {seconds:.0f} s"
        time.sleep(0.2)
