"""``bench page``: how soon the page shows a run's credit, and how smooth it is to point at it. A real ComfyUI and a real browser."""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from . import browser
from .errors import SetupError
from .local import COMFYUI
from .page import browser_page, open_page
from .server import ComfyServer

ROOT = Path(__file__).resolve().parent.parent
MEMBERS, STEPS = 24, 40
LIMIT = 1.0  # seconds
RENDERERS = {"classic": False, "nodes2": True}
ABOUT = "seconds from the moment the server sends the node's executed message until the page has drawn the whole widget, thumbnails decoded; frames while the pointer passes over every cell"
ADD = """([members, steps]) => {
    const graph = app.canvas.graph;
    graph.clear();
    Object.assign(app.canvas.ds, {scale: 1, offset: [90, 110]});
    const make = LiteGraph.createNode('StepwiseGRPO_MadeUpCredit');
    make.pos = [0, 0];
    graph.add(make);
    const set = (name, value) => { make.widgets.find(widget => widget.name === name).value = value };
    set('prompts', 1);
    set('members', members);
    set('steps', steps);
    const view = LiteGraph.createNode('StepwiseGRPO_CreditVisualizer');
    view.pos = [440, 0];
    graph.add(view);
    make.connect(0, view, 0);
    window.stepwiseSeconds = [];
    app.api.addEventListener('executed', ({detail}) => {
        const id = detail.output?.stepwise_grpo_credit?.[0];
        const frame = () => {
            if (!document.querySelector('.sg-credit')?.dataset.drawn?.startsWith(id)) return requestAnimationFrame(frame);
            // What is complete before a frame is painted with it; the frame after that one begins when it is on the screen.
            requestAnimationFrame(() => requestAnimationFrame(() => window.stepwiseSeconds.push(Date.now() / 1000 - detail.sent_at)));
        };
        if (id) frame();
    });
    window.stepwiseRun = seed => { set('made_up_seed', seed); app.queuePrompt(0, 1) };
}"""
FRAMES = """() => {
    window.stepwiseFrames = [];
    let last = performance.now();
    const frame = now => { if (!window.stepwiseFrames) return; window.stepwiseFrames.push(now - last); last = now; requestAnimationFrame(frame) };
    requestAnimationFrame(frame);
}"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeat", type=int, default=20, help="runs of each renderer after a first one that does not count (default 20)")
    parser.add_argument("--renderer", choices=list(RENDERERS), help="only this one")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """p50 and p95 in seconds for each renderer, and the frames of pointing; ``failed`` above the limit."""
    path = browser.find()
    if path is None:
        raise SetupError(browser.REMEDY)
    result: dict[str, Any] = {"about": ABOUT, "group": f"{MEMBERS} x {STEPS}", "repeats": options.repeat, "limit_s": LIMIT, "failed": False}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, server_in(Path(folder), COMFYUI) as server:
        for name in [options.renderer] if options.renderer else RENDERERS:
            server.post("/settings/Comfy.VueNodes.Enabled", RENDERERS[name])
            with browser_page(path) as page:
                result[name] = measure(page, server, options.repeat)
            result["failed"] |= result[name]["p95_s"] > LIMIT
            print(f"{name}: shown after {result[name]['p50_s']:.2f} s, p95 {result[name]['p95_s']:.2f} s (limit {LIMIT:g}); longest frame {result[name]['longest_frame_ms']:.0f} ms")
    return result


def server_in(folder: Path, comfyui: Path) -> ComfyServer:
    """A ComfyUI with the node that makes up credit, its output and its page's settings below ``folder``."""
    paths, user = folder / "paths.yaml", folder / "user"
    paths.write_text(json.dumps({"made_up": {"custom_nodes": str(ROOT / "tools" / "page_nodes")}}), "utf-8")  # JSON is YAML
    user.mkdir()
    options = ("--extra-model-paths-config", str(paths), "--user-directory", str(user))
    return ComfyServer(comfyui, folder / "output é", folder / "comfyui.log", options=options)


def measure(page: Any, server: ComfyServer, repeat: int) -> dict[str, float]:
    open_page(page, server)
    page.evaluate(ADD, [MEMBERS, STEPS])
    page.wait_for_selector(".sg-note")
    for seed in tqdm(range(repeat + 1), desc="runs"):
        page.evaluate("seed => window.stepwiseRun(seed)", seed)
        page.wait_for_function("count => window.stepwiseSeconds.length === count", arg=seed + 1)
    first, *seconds = page.evaluate("window.stepwiseSeconds")
    frames = sweep(page)
    return {
        **{"first_s": first, "p50_s": quantile(seconds, 0.5), "p95_s": quantile(seconds, 0.95), "longest_s": max(seconds)},
        **{"frames": len(frames), "median_frame_ms": quantile(frames, 0.5), "p95_frame_ms": quantile(frames, 0.95), "longest_frame_ms": max(frames)},
    }


def sweep(page: Any) -> list[float]:
    """Milliseconds of each frame while the pointer passes over every cell, row by row."""
    box = page.locator(".sg-map").bounding_box()
    page.evaluate(FRAMES)
    for member in range(MEMBERS):
        for step in range(STEPS):
            page.mouse.move(box["x"] + box["width"] * (step + 0.5) / STEPS, box["y"] + box["height"] * (member + 0.5) / MEMBERS)
    return page.evaluate("() => { const frames = window.stepwiseFrames.slice(1); window.stepwiseFrames = null; return frames }")


def quantile(values: list[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
