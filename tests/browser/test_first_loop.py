"""The artist's first minutes in a real browser: drop the workflow on the page, press Run, see the loop close."""

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwise_grpo.tools.workflow import api_form
from stepwise_grpo.training.job import RunFolder

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOW = ROOT / "workflows" / "first_loop.json"
SHOTS = Path(__file__).resolve().parent / "shots"
CHROMIUM = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# What the stock page says on a fresh ComfyUI without internet, with this pack or without it:
STOCK = (
    r"Failed to load resource: .* 404 .*/(api/)?(user\.css|userdata[/?])",  # files of a user who has saved none yet
    r"/favicon\.ico",  # the browser asks for it by itself
    r"api\.comfy\.org",  # the registry's list of known nodes; the internet is closed to a test
    r"missingModelMetadata",  # newer pages ask the internet about the models of the workflow they open with
    r"ComfyApp graph accessed before initialization",  # frontend 1.49, said to itself
    r"Cannot read properties of undefined \(reading 'id'\).*onChange",  # frontend 1.32.9: a setting is read before the canvas is there
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


@pytest.fixture
def page(browser_path) -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=CHROMIUM)
        page = browser.new_page(viewport={"width": 1920, "height": 1080})
        page.set_default_timeout(120_000)
        page.add_init_script(NO_ANIMATIONS)
        yield page
        browser.close()


@pytest.fixture
def complaints(page) -> list[str]:
    """Errors on the page that the stock page does not have by itself."""
    found: list[str] = []

    def note(text: str) -> None:
        if not any(re.search(pattern, text, re.DOTALL) for pattern in STOCK):
            found.append(text)

    page.on("pageerror", lambda error: note(f"{error} {error.stack}"))
    page.on("console", lambda message: note(f"{message.text} {message.location.get('url', '')}") if message.type == "error" else None)
    return found


def open_page(page, server) -> None:
    server.post("/settings/Comfy.TutorialCompleted", True)  # else the templates a newcomer is greeted with may cover the page at any moment
    page.goto(server.url)
    page.wait_for_function("window.app && window.app.graph && document.querySelector('#graph-canvas')")
    page.wait_for_load_state("networkidle")


def drop(page, file: Path) -> None:
    page.evaluate(DROP, [file.name, base64.b64encode(file.read_bytes()).decode()])
    count = len(json.loads(file.read_text("utf-8"))["nodes"])
    page.wait_for_function(f"window.app.graph.nodes.length === {count}")


def wait_for_version(run: RunFolder, version: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (run.latest() or {}).get("version", 0) < version:
        assert time.monotonic() < deadline, f"no version {version} after {seconds:.0f} s"
        time.sleep(0.2)


def take_picture(page) -> None:
    """The whole workflow, at a size at which the page still draws text."""
    page.set_viewport_size({"width": 2560, "height": 1200})
    page.evaluate("Object.assign(window.app.canvas.ds, {scale: 0.76, offset: [100, 500]}); window.app.canvas.setDirty(true, true)")
    page.wait_for_timeout(1500)
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / "first_loop.png")


def history(server) -> list[str]:
    return [entry["status"]["status_str"] for entry in server.get("/history").values()]


def test_dropped_on_the_page_and_run_twice(page, complaints, comfy_server, trainer):
    run, before = RunFolder(comfy_server.output, "my_first_run"), comfy_server.log.stat().st_size
    started, done = (run.latest() or {}).get("version", 0), len(history(comfy_server))
    open_page(page, comfy_server)
    drop(page, WORKFLOW)
    assert page.evaluate("window.app.graph.nodes.filter(node => node.has_errors).map(node => node.type)") == []
    from_page = page.evaluate("window.app.graphToPrompt().then(prompt => prompt.output)")
    here = api_form(json.loads(WORKFLOW.read_text("utf-8")), comfy_server.object_info())
    assert {id: node["inputs"] for id, node in from_page.items()} == {id: node["inputs"] for id, node in here.items()}
    for press in (1, 2):
        page.get_by_role("button", name="Run", exact=True).first.click()
        wait_for_version(run, started + press, 300)
    page.wait_for_function("window.app.graph.nodes.find(n => n.type === 'StepwiseGRPO_CreditVisualizer').imgs?.length")
    while len(history(comfy_server)) < done + 2:
        time.sleep(0.2)
    take_picture(page)
    said = page.evaluate("window.app.graph.nodes.find(n => n.type === 'StepwiseGRPO_GRPOLoRATrainer').widgets.find(w => w.name === '$$node-text-preview').value")
    assert said.startswith(f"my_first_run version {started + 2}: reward")
    assert history(comfy_server)[done:] == ["success", "success"]
    assert complaints == []
    log = comfy_server.log.read_text("utf-8", errors="replace")[before:]
    assert not [line for line in log.splitlines() if re.search(r"error|exception|traceback|warning", line, re.IGNORECASE)]
