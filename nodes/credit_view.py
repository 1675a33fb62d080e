"""What the Credit Visualizer's widget shows, as files: one view.json, and one picture of all thumbnails a group."""

# <output>/stepwise_grpo/.credit/<id>/view.json  group_000.jpg  group_001.jpg ...

import contextlib
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..training.job import FOLDER, digest_of, write_whole
from ..training.trajectory import Credit

KEPT = 40  # views; older ones are removed
SIDE = 8192  # px of a group's picture, which browsers and graphics cards still take
AREA = 24_000_000  # px of it
QUALITY = 88
FORMAT = 1


def folder_of(output: Path) -> Path:
    """Where the views lie. A run's name cannot begin with a dot, so it is nobody's run."""
    return Path(output) / FOLDER / ".credit"


def store(credit: Credit, output: Path) -> str:
    """Write the view below the folder ``output``; its id, 16 hex digits. The same credit has the same id. ``OSError`` when it cannot be written."""
    view, tiles = view_of(credit), tiles_of(credit)
    text = json.dumps(view, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    id = digest_of(text + (b"" if tiles is None else tiles.numpy().tobytes()))[:16]
    folder = folder_of(output) / id
    if is_whole(folder / "view.json", text):
        os.utime(folder)  # the newest again
        return id
    try:
        for group in range(len(credit.texts) if tiles is not None else 0):
            write_whole(folder / f"group_{group:03d}.jpg", sheet(tiles[:, group * credit.group_size : (group + 1) * credit.group_size]))
        write_whole(folder / "view.json", text)  # last: a view that is there is whole
    except OSError:
        remove(folder)
        raise
    forget_old(folder.parent)
    return id


def is_whole(path: Path, text: bytes) -> bool:
    try:
        return path.read_bytes() == text
    except OSError:
        return False


def view_of(credit: Credit) -> dict[str, Any]:
    """The view as JSON has it; rewards (K+1) x B with None where nobody looked, advantages K x B, tiles in px or None."""
    tiles = tile_size(credit)
    return {
        "format": FORMAT,
        "texts": list(credit.texts),
        "group_size": credit.group_size,
        "times": list(credit.schedule.times),
        "stochastic": sorted(credit.schedule.stochastic),
        "scheme": credit.scheme,
        "law": credit.schedule.law,
        "eta": credit.schedule.eta,
        "reward": credit.reward.get("reward", ""),
        "rewards": rounded(credit.rewards),
        "advantages": rounded(credit.advantages),
        "thumbnails": tiles and {"width": tiles[0], "height": tiles[1]},
    }


def rounded(values: Tensor) -> list[list[float | None]]:
    """Rows of numbers with seven digits, all that fp32 holds; None for what is no number."""
    return [[float(f"{value:.7g}") if math.isfinite(value) else None for value in row] for row in values.double().tolist()]


def tile_size(credit: Credit) -> tuple[int, int] | None:
    """(width, height) in px of one thumbnail, so small that a group's picture is not too large; None without thumbnails."""
    if credit.thumbnails is None:
        return None
    states, _, height, width, _ = credit.thumbnails.shape
    wide, high = width * states, height * credit.group_size
    scale = min(1.0, SIDE / wide, SIDE / high, math.sqrt(AREA / (wide * high)))
    return max(1, int(width * scale)), max(1, int(height * scale))


def tiles_of(credit: Credit) -> Tensor | None:
    """(K+1, B, h, w, 3), uint8, on the CPU: the thumbnails at the size of the tiles."""
    size = tile_size(credit)
    if size is None:
        return None
    width, height = size
    if credit.thumbnails.shape[2:4] == (height, width):
        return eight_bits(credit.thumbnails)
    smaller = [F.interpolate(state.float().movedim(-1, 1), size=(height, width), mode="area").movedim(1, -1) for state in credit.thumbnails]
    return eight_bits(torch.stack(smaller))


def eight_bits(pictures: Tensor) -> Tensor:
    return (pictures.clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous()


def sheet(tiles: Tensor) -> bytes:
    """A jpg of the tiles (K+1, G, h, w, 3) of one group: a row a member, a column a state."""
    from PIL import Image

    states, members, height, width, _ = tiles.shape
    pixels = tiles.permute(1, 2, 0, 3, 4).reshape(members * height, states * width, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels.contiguous().numpy()).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def forget_old(folder: Path) -> None:
    """Keep the newest views. Another ComfyUI may be at the same; what is left is left for the next time."""
    with contextlib.suppress(OSError):
        views = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for view in views[KEPT:]:
            remove(view)


def remove(folder: Path) -> None:
    """Remove a view, view.json first, so that half a view is none. On Windows a file that is being read stays."""
    with contextlib.suppress(OSError):
        for file in sorted(folder.iterdir(), reverse=True):
            file.unlink(missing_ok=True)
        folder.rmdir()
