"""From a bare clone to something that runs: ``.venv``, ``.comfyui``, and the pack among its custom nodes."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from . import comfyui as source
from . import own_comfyui, pack, pins
from .environment import ensure_packages, ensure_python, requirement_lines
from .lock import only_one


@dataclass(frozen=True)
class Setup:
    """What every command runs in."""

    python: Path
    comfyui: Path
    pack: Path  # the folder from which ComfyUI loads the pack
    seconds: float  # how long the set-up took this time

    def environment(self) -> dict[str, str]:
        """What the commands' processes are told."""
        return {"STEPWISE_COMFYUI": str(self.comfyui), "STEPWISE_PACK": str(self.pack), "STEPWISE_SETUP_S": f"{self.seconds:.2f}"}


def prepare(root: Path, dev: bool = False, repair: bool = False) -> Setup:
    """Make or repair whatever is missing; quick when nothing is. ``dev`` adds what only the tests need."""
    began = time.monotonic()
    own = os.environ.get("COMFYUI_PATH", "").strip()
    with only_one(root / ".setup.lock"):
        comfyui, python = _own(root, own, dev) if own else _made(root, dev, repair)
        folder = pack.install(root, comfyui)
    return Setup(python, comfyui, folder, time.monotonic() - began)


def base_requirements(root: Path, comfyui: Path) -> list[str]:
    """torch, what ComfyUI's requirements.txt names, and what ours names."""
    theirs = requirement_lines((comfyui / "requirements.txt").read_text("utf-8"), without=pins.COMFYUI_NOT_NEEDED)
    return [*pins.TORCH, *theirs, *_ours(root)]


def _ours(root: Path) -> list[str]:
    return requirement_lines((root / "requirements.txt").read_text("utf-8"))


def _made(root: Path, dev: bool, repair: bool) -> tuple[Path, Path]:
    python = ensure_python(root, repair)
    comfyui = source.ensure(root, python, repair)
    ensure_packages(root, "base", base_requirements(root, comfyui), "installing packages into .venv", repair)
    if dev or repair:
        ensure_packages(root, "dev", pins.DEV, "installing the tests' packages into .venv", repair)
    return comfyui, python


def _own(root: Path, text: str, dev: bool) -> tuple[Path, Path]:
    comfyui = own_comfyui.find(text)
    python = own_comfyui.choose_python(comfyui)
    print(f"using ComfyUI in {comfyui} with {python}", file=sys.stderr)
    own_comfyui.check_packages(python, [*_ours(root), *(pins.DEV if dev else ())])
    return comfyui, python
