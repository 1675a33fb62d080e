"""The artist's first minutes in a real browser: drop the workflow on the page, press Run, see the loop close."""

import json
import re
import time
from pathlib import Path

from stepwise_grpo.tools.page import drop, open_page, wait_for_version
from stepwise_grpo.tools.workflow import api_form
from stepwise_grpo.training.job import RunFolder

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOW = ROOT / "workflows" / "first_loop.json"
SHOTS = Path(__file__).resolve().parent / "shots"


def take_picture(page) -> None:
    """The whole workflow, at a size at which the page still draws text."""
    page.set_viewport_size({"width": 2560, "height": 1200})
    page.evaluate("Object.assign(window.app.canvas.ds, {scale: 0.76, offset: [100, 120]}); window.app.canvas.setDirty(true, true)")
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
    page.wait_for_selector(".sg-credit[data-drawn]:not([data-drawn=''])")
    while len(history(comfy_server)) < done + 2:
        time.sleep(0.2)
    take_picture(page)
    sizes = {str(id): height for id, height in page.evaluate("window.app.graph.nodes.map(node => [node.id, node.size[1]])")}
    assert sizes == {str(node["id"]): node["size"][1] for node in json.loads(WORKFLOW.read_text("utf-8"))["nodes"]}  # a node that grew would cover another
    said = page.evaluate("window.app.graph.nodes.find(n => n.type === 'StepwiseGRPO_GRPOLoRATrainer').widgets.find(w => w.name === '$$node-text-preview').value")
    assert said.startswith(f"my_first_run version {started + 2}: reward")
    assert history(comfy_server)[done:] == ["success", "success"]
    assert complaints == []
    log = comfy_server.log.read_text("utf-8", errors="replace")[before:]
    assert not [line for line in log.splitlines() if re.search(r"error|exception|traceback|warning", line, re.IGNORECASE)]
