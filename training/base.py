"""The base model of a run as data: which file, and whether it is still the same one. Standard library only."""

import hashlib
from pathlib import Path
from typing import Any

DEMO = {"kind": "demo"}


def describe(kind: str, name: str, path: Path) -> dict[str, Any]:
    """{kind, name, size in bytes, sha256 of the file's header}: enough to notice another file under the same name."""
    return {"kind": kind, "name": name, "size": path.stat().st_size, "sha256": header_digest(path)}


def header_digest(path: Path) -> str:
    """sha256 of a safetensors header (names, shapes, dtypes, metadata), or of the first MiB of another file."""
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        limit = length if path.suffix == ".safetensors" and length < 100 * 2**20 else 2**20
        return hashlib.sha256(start + file.read(limit)).hexdigest()


def check_same(base: dict[str, Any], path: Path | None) -> None:
    """``ValueError`` unless ``path`` is still the file that ``base`` describes."""
    if path is None or not Path(path).is_file():
        raise ValueError(f"the base model {base['name']!r} is no longer in ComfyUI's {base['kind']!r} folders; put it back or start a new run")
    found = describe(base["kind"], base["name"], Path(path))
    if found != base:
        raise ValueError(f"the base model {base['name']!r} has changed since the run was started (another size or header); put the old file back or start a new run")
