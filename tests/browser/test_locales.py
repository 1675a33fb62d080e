"""The nodes in the languages of the page, as an artist sees them: titles, widgets, sockets, and the words under the mouse."""

import json
from pathlib import Path

import pytest

from stepwise_grpo.tools.page import drop, open_page

ROOT = Path(__file__).resolve().parent.parent.parent
SHOTS = Path(__file__).resolve().parent / "shots"
LIVE, TRAINER = "StepwiseGRPO_LiveLoRA", "StepwiseGRPO_GRPOLoRATrainer"
SHOWN = """type => {
    const node = window.app.graph.nodes.find(node => node.type === type);
    return {
        title: node.title,
        widgets: Object.fromEntries(node.widgets.map(widget => [widget.name, widget.label])),
        inputs: Object.fromEntries(node.inputs.map(input => [input.name, input.localized_name])),
        outputs: node.outputs.filter(output => output.name !== output.type).map(output => output.localized_name),
        category: window.LiteGraph.registered_node_types[type].category,
    };
}"""
SHOW = """type => {
    const {canvas, graph} = window.app, node = graph.nodes.find(node => node.type === type);
    Object.assign(canvas.ds, {scale: 1, offset: [900 - node.pos[0], 300 - node.pos[1]]});
    canvas.setDirty(true, true);
}"""
WHERE = """([type, name]) => {  // once it was drawn
    const node = window.app.graph.nodes.find(node => node.type === type);
    const at = window.app.canvas.canvas.getBoundingClientRect(), y = name ? node.widgets.find(widget => widget.name === name).y + 10 : -12;
    return [at.left + 900 + (name ? node.size[0] / 2 : 100), at.top + 300 + y];
}"""


@pytest.fixture
def settings(comfy_server):
    """Settings of the page that are put back at the end: the server keeps them for the next test."""
    put = lambda key, value: comfy_server.post(f"/settings/{key}", value)
    put("LiteGraph.Node.TooltipDelay", 50)
    yield put
    put("LiteGraph.Node.TooltipDelay", 500)
    put("Comfy.Locale", "en")


def under_the_mouse(page, *where: str | None) -> str:
    """The words that appear when the mouse rests on a node's title or on one of its widgets."""
    page.evaluate(SHOW, where[0])
    page.wait_for_timeout(500)
    x, y = page.evaluate(WHERE, list(where))
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y)
    page.wait_for_function("document.querySelector('.node-tooltip')?.textContent.trim()")
    return page.evaluate("document.querySelector('.node-tooltip').textContent.trim()")


def is_there(server, page, language: str) -> bool:
    """Whether this page takes the language; some do not know German and fall back to English."""
    return page.evaluate("window.app.extensionManager.setting.get('Comfy.Locale')") == language


@pytest.mark.parametrize("language", ["en", "zh", "ja", "de"])
def test_nodes_speak_the_language_of_the_page(language, page, complaints, comfy_server, settings):
    settings("Comfy.Locale", language)
    open_page(page, comfy_server)
    if language == "de" and not is_there(comfy_server, page, language):
        language = "en"
    texts = json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text("utf-8"))
    main = json.loads((ROOT / "locales" / language / "main.json").read_text("utf-8"))
    drop(page, ROOT / "workflows" / "first_loop.json")
    for node in (LIVE, TRAINER):
        shown, expected = page.evaluate(SHOWN, node), texts[node]
        assert shown["title"] == expected["display_name"]
        assert shown["category"] == main["nodeCategories"]["Stepwise GRPO"]
        assert shown["inputs"] == {name: part["name"] for name, part in expected["inputs"].items()}
        assert shown["widgets"].items() >= {name: part["name"] for name, part in expected["inputs"].items() if name in shown["widgets"]}.items()
        assert set(shown["outputs"]) <= {part["name"] for part in expected["outputs"].values()} and len(shown["outputs"]) > 1
    assert under_the_mouse(page, LIVE, None) == texts[LIVE]["description"]
    assert under_the_mouse(page, TRAINER, "learning_rate") == texts[TRAINER]["inputs"]["learning_rate"]["tooltip"]
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"locale_{language}.png")
    assert complaints == []
