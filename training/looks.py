"""Looks: pictures of one fixed seed on prompts that a run is not trained on, a contact picture for each version looked at. Standard library only."""

# <output>/stepwise_grpo/<run>/looks/   v000012.json  v000012.jpg

import json
import math
from pathlib import Path
from typing import Any

from .job import RunFolder, retry_sharing, write_json, write_whole


def look_picture(run: RunFolder, version: int) -> Path:
    """The contact picture of a look."""
    return run.look_file(version).with_suffix(".jpg")


def write_look(run: RunFolder, look: dict[str, Any], picture: bytes) -> None:
    """File a look of ``look["version"]``; the picture first, so that a look always has one. The same look again changes nothing."""
    version = look["version"]
    same = lambda known: {**known, "at": None} == {**look, "at": None}
    if look_picture(run, version).is_file() and any(same(known) for known in read_looks(run) if known["version"] == version):
        return
    write_whole(look_picture(run, version), picture)
    write_json(run.look_file(version), look)


def read_looks(run: RunFolder, series: str | None = None) -> list[dict[str, Any]]:
    """All looks of a run, or of one series, by version. Files that are no look are passed over; an unreadable folder has none."""
    try:
        found = [look for path in sorted(run.looks.glob("v*.json")) if (look := _read(path)) and path == run.look_file(look["version"])]
    except OSError:
        return []
    return [look for look in found if series in (None, look["series"])]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        look = json.loads(retry_sharing(path.read_bytes))
        whole = isinstance(look["version"], int) and look["version"] >= 0 and isinstance(look["series"], str) and isinstance(look["prompts"], list)
        return look if whole and (look["reward_mean"] is None or math.isfinite(look["reward_mean"])) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
