"""The Credit Visualizer's widget on ComfyUI's real page: both renderers, both themes, pointer and keyboard, and everything a workflow goes through."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwise_grpo.tools.bench_page import server_in
from stepwise_grpo.tools.page import open_page
from stepwise_grpo.tools.server import ComfyServer

SHOTS = Path(__file__).resolve().parent / "shots"
DRAWN = ".sg-credit[data-drawn]:not([data-drawn=''])"
ADD = """([inputs, scale]) => {
    const graph = app.canvas.graph;
    graph.clear();
    Object.assign(app.canvas.ds, {scale, offset: [90, 110]});
    const make = LiteGraph.createNode('StepwiseGRPO_MadeUpCredit');
    make.pos = [0, 0];
    graph.add(make);
    for (const widget of make.widgets) if (widget.name in inputs) widget.value = inputs[widget.name];
    const view = LiteGraph.createNode('StepwiseGRPO_CreditVisualizer');
    view.pos = [440, 0];
    graph.add(view);
    make.connect(0, view, 0);
}"""
VIEW = "app.graph.nodes.find(node => node.type === 'StepwiseGRPO_CreditVisualizer')"
SCALE = 1.1
HOSTILE = '<img src=x onerror="window.broken=1"> שלום עולם مرحبا 一只红色的圆 ' + "very long " * 400


@pytest.fixture(scope="module")
def server(comfyui_folder: Path, pack_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A ComfyUI with a node besides that makes up credit, and with page settings of its own."""
    with server_in(tmp_path_factory.mktemp("credit é"), comfyui_folder) as server:
        yield server


@pytest.fixture(params=[False, True], ids=["classic", "nodes2"])
def vue(request, server) -> bool:
    server.post("/settings/Comfy.VueNodes.Enabled", request.param)
    return request.param


def opened(page, server, palette="dark", **inputs):
    """The page with a made-up credit and a Credit Visualizer, run once."""
    server.post("/settings/Comfy.ColorPalette", palette)
    server.post("/settings/Comfy.VueNodes.AutoScaleLayout", False)
    open_page(page, server)
    page.evaluate(ADD, [inputs, SCALE])
    page.wait_for_selector(".sg-credit .sg-note")
    run(page)


def run(page) -> None:
    page.evaluate("app.queuePrompt(0, 1)")
    page.wait_for_selector(DRAWN)


def shot(page, name: str) -> None:
    page.wait_for_timeout(400)
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"credit_{name}.png")


def at(page, member: int, step: int, size: int = 8, steps: int = 10) -> tuple[float, float]:
    """Where a cell (counted from 1) lies on the screen."""
    box = page.locator(".sg-map").bounding_box()
    return box["x"] + box["width"] * (step - 0.5) / steps, box["y"] + box["height"] * (member - 0.5) / size


def resize(page, vue, width: int, height: int) -> None:
    """By its lower right corner in Nodes 2.0, whose page of 0.3.75 does not follow setSize; by ComfyUI's own call in the classic renderer."""
    if not vue:
        page.evaluate(f"() => {{ {VIEW}.setSize([{width}, {height}]); app.canvas.setDirty(true, true) }}")
        return
    node = page.locator(".lg-node", has=page.locator(".sg-credit"))
    box = node.bounding_box()
    x, y = box["x"] + box["width"] - 4, box["y"] + box["height"] - 4
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(box["x"] + width * SCALE - 4, box["y"] + height * SCALE - 4, steps=5)
    page.mouse.up()


def card(page) -> str:
    return page.locator(".sg-card").inner_text()


def stored(server) -> dict:
    """The newest view on disk."""
    folder = max((server.output / "stepwise_grpo" / ".credit").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return json.loads((folder / "view.json").read_text("utf-8")) | {"id": folder.name}


def name(vue: bool) -> str:
    return "nodes2" if vue else "classic"


def test_pointing_at_a_step_tells_it_and_a_click_keeps_it(page, complaints, server, vue):
    opened(page, server)
    view = stored(server)
    group = int(re.match(r"(\d+) of 3", page.locator(".sg-place").inner_text())[1]) - 1
    before, after = (view["rewards"][k][8 * group + 4] for k in (2, 3))
    assert re.search(r"Step \d+ of 10 earned most: \+0\.\d+ on average\. Picture \d lost most", page.locator(".sg-headline").inner_text())
    shot(page, f"{name(vue)}")
    page.mouse.move(*at(page, 5, 3))
    page.wait_for_function("document.querySelector('.sg-card').innerText.includes('Picture 5 · step 3 of 10')")
    text = card(page)
    assert f"{before:.2f} → {after:.2f}" in text and "0.80 → 0.70" in text and "random\nyes" in text
    assert f"{after - before:+.2f}".replace("-", "−") in text
    start, final = (float(f"{view['rewards'][k][8 * group + 4]:.2f}") for k in (0, -1))
    assert f"Picture 5: start {start:.2f} + gains {final - start:.2f} = final {final:.2f}".replace("-", "−") in text
    small = page.locator(".sg-picture").first.bounding_box()["width"]
    shot(page, f"{name(vue)}_hover")
    where, canvas = page.evaluate(f"[...{VIEW}.pos]"), page.evaluate("[...app.canvas.ds.offset]")
    page.mouse.down()
    page.mouse.move(*at(page, 5, 4))
    page.mouse.move(*at(page, 5, 3))
    page.mouse.up()
    page.wait_for_selector(".sg-pinned")
    assert page.locator(".sg-picture").first.bounding_box()["width"] > 1.4 * small
    page.mouse.move(*at(page, 1, 10))
    page.wait_for_timeout(100)
    assert "Picture 5 · step 3 of 10" in card(page)
    shot(page, f"{name(vue)}_pinned")
    assert (where, canvas) == (page.evaluate(f"[...{VIEW}.pos]"), page.evaluate("[...app.canvas.ds.offset]"))
    page.locator(".sg-card .sg-button").click()
    page.mouse.move(*at(page, 1, 10))
    page.wait_for_function("document.querySelector('.sg-card').innerText.includes('no, nothing to learn')")
    assert complaints == []


def test_the_keyboard_reaches_everything(page, complaints, server, vue):
    opened(page, server)
    map_ = page.locator(".sg-map")
    map_.focus()
    live = lambda: page.locator(".sg-live").inner_text()
    for key in ("ArrowRight", "Home", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    page.wait_for_function("document.querySelector('.sg-live').textContent.includes('step 3 of 10')")
    best = int(re.match(r"Picture (\d)", live())[1])
    page.keyboard.press("ArrowUp" if best > 1 else "ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sg-pinned")
    assert live().startswith(f"Picture {best - 1 if best > 1 else 2} · step 3 of 10, time 0.80 → 0.70, reward ")
    shot(page, f"{name(vue)}_keyboard")
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.sg-live').textContent.includes('step 10 of 10')")
    page.keyboard.press("Escape")
    page.wait_for_selector(".sg-card:not(.sg-pinned)")
    first = page.locator(".sg-place").inner_text()
    page.keyboard.press("]")
    page.wait_for_function("before => document.querySelector('.sg-place').innerText !== before", arg=first)
    assert page.evaluate("document.activeElement.className") == "sg-map"
    page.keyboard.press("PageUp")
    page.wait_for_function("before => document.querySelector('.sg-place').innerText === before", arg=first)
    page.get_by_role("button", name="Next prompt").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("before => document.querySelector('.sg-place').innerText !== before", arg=first)
    assert complaints == []


def test_light_theme(page, complaints, server, vue):
    opened(page, server, palette="light")
    page.mouse.move(*at(page, 2, 2))
    shot(page, f"{name(vue)}_light")
    colour = page.evaluate("getComputedStyle(document.querySelector('.sg-headline')).color")
    assert max(int(part) for part in re.findall(r"\d+", colour)[:3]) < 90, colour
    assert complaints == []


def test_it_fills_the_node_at_every_size(page, complaints, server, vue):
    opened(page, server)
    for width, height in ((900, 640), (720, 740), (480, 520)):
        resize(page, vue, width, height)
        page.wait_for_timeout(600)
        box = page.locator(".sg-credit").bounding_box()
        assert box["width"] / SCALE == pytest.approx(width, abs=40)
        assert box["height"] / SCALE == pytest.approx(height, abs=110)
        for part in (".sg-map", ".sg-curves", ".sg-card"):
            inner = page.locator(part).bounding_box()
            assert inner["height"] > 50 and inner["y"] + inner["height"] <= box["y"] + box["height"] + 1, part
        shot(page, f"{name(vue)}_{width}x{height}")
    assert complaints == []


def test_the_link_still_ends_at_the_input(page, complaints, server, vue):
    """A widget that is named as an input would take its socket in Nodes 2.0."""
    opened(page, server)
    page.wait_for_timeout(500)
    (x, y), pos = page.evaluate(f"[[...{VIEW}.getInputPos(0)], [...{VIEW}.pos]]")
    assert x - pos[0] == pytest.approx(5, abs=8) and y - pos[1] == pytest.approx(15, abs=12)
    assert complaints == []


def test_the_wheel_still_zooms_the_canvas(page, complaints, server, vue):
    opened(page, server)
    page.mouse.move(*at(page, 4, 4))
    page.mouse.wheel(0, -200)
    page.wait_for_function("app.canvas.ds.scale > 1.12")
    assert complaints == []


def test_it_survives_reload_copy_and_a_subgraph(page, complaints, server, vue):
    opened(page, server)
    drawn = page.locator(".sg-credit").get_attribute("data-drawn")
    id = page.evaluate(f"{VIEW}.properties.stepwise_grpo_credit")
    assert id == stored(server)["id"] and drawn.startswith(id)
    saved = page.evaluate("JSON.stringify(app.graph.serialize())")
    page.wait_for_timeout(1500)  # the page keeps its draft
    page.reload()
    page.wait_for_selector(f".sg-credit[data-drawn='{drawn}']")
    page.evaluate("saved => app.loadGraphData(JSON.parse(saved))", saved)
    page.wait_for_selector(f".sg-credit[data-drawn='{drawn}']")
    page.evaluate(f"() => {{ const node = {VIEW}; app.canvas.selectNode(node); app.canvas.copyToClipboard(); app.canvas.pasteFromClipboard() }}")
    page.wait_for_function(f"document.querySelectorAll(\".sg-credit[data-drawn='{drawn}']\").length === 2")
    page.evaluate("() => { const twice = app.graph.nodes.filter(n => n.type === 'StepwiseGRPO_CreditVisualizer'); app.graph.remove(twice[1]) }")
    page.wait_for_function("document.querySelectorAll('.sg-credit').length === 1")
    page.evaluate("() => { app.canvas.graph.convertToSubgraph(new Set(app.graph.nodes)) }")
    page.evaluate("() => { const node = app.graph.nodes.find(n => n.subgraph); app.canvas.openSubgraph(node.subgraph, node) }")
    page.wait_for_selector(f".sg-credit[data-drawn='{drawn}']")
    inside = "app.canvas.graph.nodes.find(node => node.type === 'StepwiseGRPO_CreditVisualizer')"
    page.evaluate("() => { app.canvas.graph.nodes.find(n => n.type === 'StepwiseGRPO_MadeUpCredit').widgets.find(w => w.name === 'made_up_seed').value = 7 }")
    page.evaluate("app.queuePrompt(0, 1)")
    page.wait_for_function(f"{inside}.properties.stepwise_grpo_credit !== '{id}'")
    page.wait_for_selector(f".sg-credit[data-drawn^='{page.evaluate(inside + '.properties.stepwise_grpo_credit')}']")
    shot(page, f"{name(vue)}_subgraph")
    assert page.locator(".p-toast-message-warn, .p-toast-message-error").all_inner_texts() == []
    assert complaints == []


def test_a_result_that_comes_while_another_workflow_is_open_is_there_on_return(page, complaints, server):
    server.post("/settings/Comfy.VueNodes.Enabled", False)
    opened(page, server)
    id = page.evaluate(f"{VIEW}.properties.stepwise_grpo_credit")
    page.evaluate("() => { app.graph.nodes.find(n => n.type === 'StepwiseGRPO_MadeUpCredit').widgets.find(w => w.name === 'made_up_seed').value = 11 }")
    done = len(server.get("/history"))
    page.evaluate("app.queuePrompt(0, 1).then(() => app.extensionManager.command.execute('Comfy.NewBlankWorkflow'))")
    page.wait_for_function("app.graph.nodes.length === 0")
    while len(server.get("/history")) == done:
        page.wait_for_timeout(100)
    page.wait_for_timeout(500)
    page.evaluate("app.extensionManager.command.execute('Workspace.PreviousOpenedWorkflow')")
    page.wait_for_function(f"{VIEW}?.properties.stepwise_grpo_credit && {VIEW}.properties.stepwise_grpo_credit !== '{id}'")
    assert complaints == []


def test_uniform_credit_has_no_gains_and_says_so(page, complaints, server, vue):
    opened(page, server, scheme="uniform")
    assert "looks at the finished pictures only" in page.locator(".sg-headline").inner_text()
    assert "discouraged" in page.locator(".sg-legend").inner_text()
    page.mouse.move(*at(page, 3, 10))
    page.wait_for_function("document.querySelector('.sg-card').innerText.includes('Picture 3 · step 10 of 10')")
    assert "gain" not in card(page) and re.search(r"Picture 3: final \d", card(page))
    shot(page, f"{name(vue)}_uniform")
    assert complaints == []


def test_a_large_group(page, complaints, server, vue):
    opened(page, server, prompts=2, members=24, steps=40)
    shot(page, f"{name(vue)}_24x40")
    page.mouse.move(*at(page, 17, 9, 24, 40))
    page.wait_for_function("document.querySelector('.sg-card').innerText.includes('Picture 17 · step 9 of 40')")
    shot(page, f"{name(vue)}_24x40_hover")
    assert complaints == []


def test_hostile_prompts_stay_text(page, complaints, server):
    server.post("/settings/Comfy.VueNodes.Enabled", False)
    opened(page, server, text=HOSTILE)
    assert page.locator(".sg-prompt").inner_text().startswith("<img src=x onerror=")
    assert page.evaluate("window.broken") is None and page.locator(".sg-credit img").count() == 0
    box, node = page.locator(".sg-prompt").bounding_box(), page.locator(".sg-credit").bounding_box()
    assert box["x"] + box["width"] <= node["x"] + node["width"] and box["height"] < 40
    shot(page, "hostile")
    assert complaints == []


@pytest.mark.parametrize(
    "id, sentence",
    [("0123456789abcdef", "not stored any more.*Press Run again"), ("../../etc/passwd", "After a run you see here"), (7, "After a run you see here")],
)
def test_a_view_that_is_gone_says_what_to_do(page, server, id, sentence):
    server.post("/settings/Comfy.VueNodes.Enabled", False)
    opened(page, server)
    page.evaluate("id => { const saved = JSON.parse(JSON.stringify(app.graph.serialize())); for (const n of saved.nodes) if (n.properties.stepwise_grpo_credit) n.properties.stepwise_grpo_credit = id; app.loadGraphData(saved) }", id)
    page.wait_for_selector(".sg-note")
    page.wait_for_function("pattern => new RegExp(pattern).test(document.querySelector('.sg-note')?.innerText)", arg=sentence)
    shot(page, "gone")


def test_a_server_without_our_routes_is_told_in_a_sentence(page, server):
    server.post("/settings/Comfy.VueNodes.Enabled", False)
    page.route("**/stepwise_grpo/credit/**", lambda route: route.fulfill(status=404, body="404: Not Found"))
    server.post("/settings/Comfy.ColorPalette", "dark")
    open_page(page, server)
    page.evaluate(ADD, [{}, SCALE])
    page.evaluate("app.queuePrompt(0, 1)")
    page.wait_for_function("document.querySelector('.sg-note')?.innerText.includes('ComfyUI does not answer here (404')")
