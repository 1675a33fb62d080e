"""What ComfyUI's page draws: a workflow, or one node."""

from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from ..page import drop
from ..server import ComfyServer
from .drawing import Picture

SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.Minimap.Visible": False,
    "Comfy.Workflow.ShowMissingModelsWarning": False,
    "Comfy.Graph.CanvasInfo": False,
    "Comfy.NodeBadge.NodeSourceBadgeMode": "None",
    "Comfy.NodeBadge.NodeIdBadgeMode": "None",
}
LEFT, TOP = 120, 130  # px of the page taken by its bars
TITLE = 30
SEEN = (1400, 1260)  # of a workflow, in the canvas's units
CLEAR = "window.app.graph.clear()"
# Only the nodes: no frames, no lines, nothing selected.
BARE = """() => {
    for (const group of [...window.app.graph.groups]) window.app.graph.remove(group);
    window.app.canvas.links_render_mode = window.LiteGraph.HIDDEN_LINK;
    window.app.canvas.deselectAll?.();
}"""
LOOK_AT = """([x, y, scale]) => {
    const ds = window.app.canvas.ds;
    ds.scale = scale;
    ds.offset[0] = x;
    ds.offset[1] = y;
    window.app.canvas.setDirty(true, true);
}"""
BOX = "type => { const n = window.app.graph.nodes.find(n => n.type === type); return n && [...n.pos, ...n.size]; }"
ADD = """type => {
    const node = window.LiteGraph.createNode(type);
    window.app.graph.add(node);
    node.pos = [0, 0];
    node.setSize([Math.max(node.size[0], 330), node.size[1]]);
}"""


def prepare(server: ComfyServer) -> None:
    """A page without greetings and badges."""
    for name, value in SETTINGS.items():
        server.post(f"/settings/{name}", value)


def workflow(page: Any, file: Path) -> Picture:
    """The graph from its first node on, as much as can be told apart in a small picture."""
    page.set_viewport_size({"width": 1920, "height": 1200})
    page.evaluate(CLEAR)
    drop(page, file)
    page.mouse.move(1900, 1190)  # away from everything that explains itself
    return _shot(page, -8, -8, *SEEN, 0.83)


def node(page: Any, kind: str) -> Picture:
    """A node that is on the canvas; one that is not is put there alone."""
    if page.evaluate(BOX, kind) is None:
        page.evaluate(CLEAR)
        page.evaluate(ADD, kind)
        page.wait_for_timeout(400)
    page.evaluate(BARE)
    x, y, width, height = page.evaluate(BOX, kind)
    return _shot(page, x - 6, y - TITLE - 6, width + 12, height + TITLE + 12, min(1.25, 1000 / height))


def sidebar(page: Any) -> Picture:
    """The sidebar tab, as long as it is."""
    page.set_viewport_size({"width": 1920, "height": 1800})
    page.locator(".stepwise-grpo-tab-button").click()
    panel = page.locator(".sg-panel")
    panel.get_by_text("Versions").first.wait_for()
    page.wait_for_timeout(2000)  # pictures load when they are seen
    shown = min(panel.evaluate("panel => panel.scrollHeight"), panel.bounding_box()["height"])
    shot = Image.open(BytesIO(panel.screenshot())).convert("RGB").crop((0, 0, int(panel.bounding_box()["width"]), int(shown)))
    page.locator(".stepwise-grpo-tab-button").click()
    return shot


def _shot(page: Any, x: float, y: float, width: float, height: float, scale: float) -> Picture:
    """A part of the canvas, in the canvas's own units, below and beside the page's bars."""
    page.evaluate(LOOK_AT, [LEFT / scale - x, TOP / scale - y, scale])
    page.wait_for_timeout(900)  # what lies above the canvas follows a little later
    clip = {"x": LEFT, "y": TOP, "width": round(width * scale), "height": round(height * scale)}
    return Image.open(BytesIO(page.screenshot(clip=clip))).convert("RGB")
