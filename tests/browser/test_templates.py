"""The template browser in a real browser: our workflows with their thumbnails, each opened by a click."""

import json
import re

import pytest

from stepwise_grpo.tests.browser.test_first_loop import SHOTS
from stepwise_grpo.tools.page import open_page
from stepwise_grpo.tools.workflow import api_form
from stepwise_grpo.tools.workflows import FOLDER, WORKFLOWS

CARD = "[data-testid='template-workflow-{}']"
NODES = "window.app.graph.nodes.map(node => [String(node.id), node.type, !!node.has_errors, ...node.pos, ...node.size])"


def open_templates(page) -> None:
    """The template browser at this pack's workflows."""
    page.get_by_role("button", name="Templates").first.click()
    page.get_by_text("stepwise-flow-grpo", exact=True).click()
    page.locator(CARD.format("z_image")).wait_for()


def test_the_template_browser_shows_our_workflows_with_thumbnails(page, complaints, comfy_server):
    open_page(page, comfy_server)
    open_templates(page)
    for workflow in WORKFLOWS:
        picture = page.locator(f"{CARD.format(workflow.name)} img").first
        picture.scroll_into_view_if_needed()
        page.wait_for_function("picture => picture.complete && picture.naturalWidth === 640", arg=picture.element_handle())
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / "templates.png")
    assert complaints == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
def test_a_click_opens_a_workflow_without_errors(workflow, page, complaints, comfy_server):
    file = json.loads((FOLDER / f"{workflow.name}.json").read_text("utf-8"))
    models = {model.name for part in workflow.parts for model in part.models}
    comfy_server.post("/settings/Comfy.Workflow.ShowMissingModelsWarning", True)
    open_page(page, comfy_server)
    open_templates(page)
    page.locator(CARD.format(workflow.name)).click()
    page.wait_for_function(f"window.app.graph.nodes.length === {len(file['nodes'])}")
    check_missing_models(page, models, workflow.name)
    nodes = {id: node for id, *node in page.evaluate(NODES)}
    assert {id: node[0] for id, node in nodes.items()} == {str(node["id"]): node["type"] for node in file["nodes"]}
    assert page.get_by_text(re.compile("missing node", re.IGNORECASE)).count() == 0
    for node in file["nodes"]:
        _, errors, *place = nodes[str(node["id"])]
        assert place == pytest.approx([*node["pos"], *node["size"]], abs=1), f"{node['type']}: the page draws it {place}"  # so what does not overlap in the file does not here
        assert not errors or node["properties"].get("models"), node["type"]
    from_page = page.evaluate("window.app.graphToPrompt().then(prompt => prompt.output)")
    here = api_form(file, comfy_server.object_info())
    assert {id: node["inputs"] for id, node in from_page.items()} == {id: node["inputs"] for id, node in here.items()}
    page.screenshot(path=SHOTS / f"template_{workflow.name}.png")
    # the dialogue asks the internet, which is closed to a test, how big the missing files are
    assert [text for text in complaints if not re.search(r"huggingface\.co|Failed to fetch|Network Error", text)] == []


def check_missing_models(page, models: set[str], name: str) -> None:
    """The page offers exactly the files that are missing; then its dialogue is closed."""
    if not models:
        page.wait_for_timeout(1500)
        assert page.get_by_text(re.compile("missing models", re.IGNORECASE)).count() == 0
        return
    page.get_by_text(re.compile("missing models", re.IGNORECASE)).first.wait_for()
    for model in models:
        page.get_by_text(model).first.wait_for()
    page.screenshot(path=SHOTS / f"missing_{name}.png")
    page.keyboard.press("Escape")
