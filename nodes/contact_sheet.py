"""The growing picture on the sampler while it works: clean estimates, a row a prompt, a column a step."""

from PIL import Image
from torch import Tensor

from ..training.core.tweedie import clean_estimate
from ..training.rollout import OnStep
from .convert import quick_look
from .progress import Progress

ROWS = 4  # prompts shown
COLUMNS = 12  # steps shown
TILE = 64  # px, longer side of a picture


def contact_sheet(model, times: tuple[float, ...], prompts: int, group_size: int, progress: Progress) -> OnStep | None:
    """An ``on_step`` that draws each prompt's first member; None for a model without a cheap latent preview."""
    look = quick_look(model)
    if look is None:
        return None
    stride = -(-(len(times) - 1) // COLUMNS)
    rows = [group_size * i for i in range(min(prompts, ROWS))]
    drawn: list[list[Image.Image]] = []

    def on_step(k: int, states: Tensor, velocities: Tensor) -> None:
        if k % stride == 0:
            x, v = states[rows], velocities[rows]
            clean = clean_estimate(x, v, x.new_full((len(rows),), times[k])).to(model.load_device)
            drawn.append([look.decode_latent_to_preview(clean[i : i + 1]) for i in range(len(rows))])
            progress.show(paste(drawn))

    return on_step


def paste(columns: list[list[Image.Image]]) -> Image.Image:
    """One picture of a table of pictures of equal size."""
    first = columns[0][0]
    scale = TILE / max(first.size)
    width, height = (max(1, round(side * scale)) for side in first.size)
    sheet = Image.new("RGB", (width * len(columns), height * len(columns[0])))
    for i, column in enumerate(columns):
        for j, picture in enumerate(column):
            sheet.paste(picture.resize((width, height), Image.Resampling.BILINEAR), (i * width, j * height))
    return sheet
