"""``bench start``: what the pack adds to ComfyUI's start, in the time that Python itself measures for every import."""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import pack
from .errors import SetupError
from .local import COMFYUI

LIMIT = 200.0  # ms
SHOWN = 12  # modules
ROOT = Path(__file__).resolve().parent.parent
ABOUT = "ms of ComfyUI's start that go into modules which only this pack imports (their own time; python -X importtime), each module's least of several starts"
_LINE = re.compile(r"import time:\s*(\d+) \|\s*\d+ \|\s*(\S.*)")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeat", type=int, default=3, help="starts with the pack, after a first one that does not count (default 3)")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"ms above which it fails (default {LIMIT:.0f})")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start ComfyUI without the pack and several times with it; ``figures`` of that."""
    folder = pack.install(ROOT, COMFYUI).name
    without = start(None)
    start(folder)  # compiles
    starts = [added(start(folder), without) for _ in range(max(options.repeat, 1))]
    if not all(any(name.endswith(".nodes.rollout") for name in modules) for modules in starts):
        raise SetupError(f"ComfyUI in {COMFYUI} did not load the pack; start it once by hand and look at its messages")
    return figures(starts, options.limit)


def figures(starts: list[dict[str, float]], limit: float) -> dict[str, Any]:
    """The sum over modules, those that cost most, and whether that is too much; ``starts``: ms by module of each start."""
    least = {name: min(modules.get(name, ms) for modules in starts) for name, ms in starts[0].items()}  # other processes can only add
    ms, dearest = sum(least.values()), sorted(least, key=lambda name: -least[name])[:SHOWN]
    for name in dearest:
        print(f"{least[name]:8.1f} ms  {name}")
    print(f"{ms:8.1f} ms in all, at most {limit:.0f} wanted: {'FAILED' if ms > limit else 'passed'}")
    each = [round(sum(modules.values()), 1) for modules in starts]
    return {"about": ABOUT, "ms": ms, "starts_ms": each, "limit_ms": limit, "count": len(least), "dearest": {name: least[name] for name in dearest}, "failed": ms > limit}


def added(modules: dict[str, float], without: Any) -> dict[str, float]:
    """The modules that ComfyUI does not import by itself."""
    return {re.split(r"custom_nodes[\\/.]", name)[-1]: ms for name, ms in modules.items() if name not in without}


def start(folder: str | None) -> dict[str, float]:
    """Start ComfyUI with the custom nodes of ``folder`` alone, or with none, and end it when it is ready: ms by module."""
    with tempfile.TemporaryDirectory() as place:
        options = ["--cpu", "--quick-test-for-ci", "--disable-all-custom-nodes", "--database-url", "sqlite:///:memory:"]
        options += ["--output-directory", place, "--temp-directory", place, *(["--whitelist-custom-nodes", folder] if folder else [])]
        command = [sys.executable, "-X", "importtime", str(COMFYUI / "main.py"), *options]
        done = subprocess.run(command, cwd=COMFYUI, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        raise SetupError(f"ComfyUI did not start:\n{done.stderr[-1000:]}")
    return {match[2]: int(match[1]) / 1000 for line in done.stderr.splitlines() if (match := _LINE.match(line))}
