"""The growing picture on a node while it works: clean estimates, a row a prompt, a column a step."""

from collections.abc import Callable
from typing import Any

from PIL import Image
from torch import Tensor

from ..training.core.tweedie import clean_estimate
from ..training.preview import OnBatch
from ..training.rollout import OnStep
from .convert import image_of, quick_look
from .progress import Progress, log

ROWS = 4  # prompts shown
COLUMNS = 12  # steps shown
TILE = 64  # px, longer side of a picture
OnClean = Callable[[int, Tensor], None]  # on_clean(k, clean estimates of the shown prompts)
Column = list[Image.Image]


def contact_sheet(model: Any, times: tuple[float, ...], prompts: int, group_size: int, progress: Progress) -> OnStep | None:
    """An ``on_step`` that draws each prompt's first member; None for a model without a cheap latent preview."""
    draw = clean_sheet(model, len(times) - 1, progress)
    if draw is None:
        return None
    rows = [group_size * i for i in range(min(prompts, ROWS))]

    def on_step(k: int, states: Tensor, velocities: Tensor) -> None:
        x, v = states[rows], velocities[rows]
        draw(k, clean_estimate(x, v, x.new_full((len(rows),), times[k])))

    return on_step


def clean_sheet(model: Any, steps: int, progress: Progress) -> OnClean | None:
    """Draws the clean estimates of the first prompts, at most one column a step; None for a model without a cheap latent preview."""
    look = quick_look(model)
    if look is None:
        return None
    stride = -(-steps // COLUMNS)
    drawn: list[Column] = []

    def on_clean(k: int, clean: Tensor) -> None:
        nonlocal look
        if look is None or k % stride:
            return
        try:
            drawn.append([look.decode_latent_to_preview(row[None].to(model.load_device)) for row in clean[:ROWS]])
        except RuntimeError as error:  # a sheet must not cost a rollout: ComfyUI has models whose preview does not fit their latent
            log.warning("no pictures of the work on the way: %s", error)
            look = None
            return
        progress.show(paste(drawn))

    return on_clean


def picture_sheet(steps: int, prompts: int, group_size: int, progress: Progress) -> OnBatch:
    """An ``on_batch`` that draws the decoded estimates of each prompt's first member, in the order in which they are scored."""
    stride = -(-steps // COLUMNS)
    drawn: dict[int, Column] = {}

    def on_batch(states: Tensor, rows: Tensor, thumbnails: Tensor) -> None:
        before = sum(map(len, drawn.values()))
        for k, row, picture in zip(states.tolist(), rows.tolist(), thumbnails):
            if (k % stride == 0 or k == steps) and row in range(0, group_size * min(prompts, ROWS), group_size):
                drawn.setdefault(k, []).append(image_of(picture))
        if sum(map(len, drawn.values())) > before:
            progress.show(paste([drawn[k] for k in sorted(drawn)]))

    return on_batch


def paste(columns: list[Column], tile: int = TILE) -> Image.Image:
    """One picture of a table of pictures of equal size, whose longer side becomes ``tile`` px. The first column is the longest."""
    first = columns[0][0]
    scale = tile / max(first.size)
    width, height = (max(1, round(side * scale)) for side in first.size)
    sheet = Image.new("RGB", (width * len(columns), height * len(columns[0])))
    for i, column in enumerate(columns):
        for j, picture in enumerate(column):
            sheet.paste(picture.resize((width, height), Image.Resampling.BILINEAR), (i * width, j * height))
    return sheet
