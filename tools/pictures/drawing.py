"""Small pictures out of what the demo made: film strips, heat maps, tiles. Pure functions over Pillow images."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from ...training.job import write_whole

DARK, LIGHT, ACCENT = "#16181d", "#e8e8ea", "#4aa3c7"
WORSE, BETTER = (214, 96, 40), (38, 132, 190)  # never red against green
Picture = Image.Image


def sheet(width: int, height: int) -> Picture:
    return Image.new("RGB", (width, height), DARK)


def tile(picture: Picture, size: int) -> Picture:
    """A square tile with round corners on the dark ground."""
    mask = Image.new("L", (4 * size, 4 * size), 0)
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, 4 * size - 1, 4 * size - 1), 4 * max(3, size // 12), fill=255)
    return Image.composite(picture.convert("RGB").resize((size, size), Image.Resampling.LANCZOS), sheet(size, size), mask.resize((size, size)))


def put_row(ground: Picture, pictures: Sequence[Picture], x: int, y: int, size: int, gap: int) -> None:
    for i, picture in enumerate(pictures):
        ground.paste(tile(picture, size), (x + i * (size + gap), y))


def frame(ground: Picture, spot: tuple[int, int], size: int, good: bool) -> None:
    """Around a tile: blue where it is right, orange where not."""
    x, y = spot
    ImageDraw.Draw(ground).rounded_rectangle((x, y, x + size - 1, y + size - 1), size // 12, outline=BETTER if good else WORSE, width=4)


def colour(value: float) -> tuple[int, int, int]:
    """-1 = made it worse, 1 = made it better, 0 = the middle grey."""
    end, part = (BETTER, value) if value > 0 else (WORSE, -value)
    return tuple(round(52 + (channel - 52) * min(1.0, part) ** 0.5) for channel in end)


def heat_map(ground: Picture, rows: Sequence[Sequence[float]], box: tuple[int, int, int, int], gap: int = 3) -> None:
    """One cell for each number, in ``box`` (left, top, width, height) px; the largest number in size has the full colour."""
    left, top, width, height = box
    limit = max((abs(value) for row in rows for value in row), default=0.0) or 1.0
    draw, across, down = ImageDraw.Draw(ground), width / len(rows[0]), height / len(rows)
    for i, row in enumerate(rows):
        for k, value in enumerate(row):
            x, y = left + k * across, top + i * down
            draw.rounded_rectangle((x, y, x + across - gap, y + down - gap), 3, fill=colour(value / limit))


def arrow(ground: Picture, x: int, y: int, length: int) -> None:
    draw = ImageDraw.Draw(ground)
    draw.line((x, y, x + length - 8, y), fill=ACCENT, width=5)
    draw.polygon(((x + length, y), (x + length - 14, y - 10), (x + length - 14, y + 10)), fill=ACCENT)


def with_title(picture: Picture, title: str, side: int) -> Picture:
    """A square: the upper part of the picture below a band with a title."""
    from matplotlib import get_data_path

    band, shown = 64, picture.convert("RGB").resize((side, round(picture.height * side / picture.width)), Image.Resampling.LANCZOS)
    ground = sheet(side, side)
    ground.paste(shown, (0, band))
    draw = ImageDraw.Draw(ground)
    draw.rectangle((0, 0, side, band - 4), fill="#1f2a33")
    draw.rectangle((0, band - 4, side, band - 1), fill=ACCENT)
    font = ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"), 36)
    draw.text((20, (band - 4) / 2), title, LIGHT, font, anchor="lm")
    return ground


def save(picture: Picture, file: Path, limit: int) -> None:
    """As JPEG of at most ``limit`` bytes: the quality gives way, then the size."""
    picture = picture.convert("RGB")
    while True:
        for quality in (90, 82, 74, 66, 58):
            data = BytesIO()
            picture.save(data, "JPEG", quality=quality, optimize=True)
            if len(data.getvalue()) <= limit:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, data.getvalue())
                return
        picture = picture.resize((round(picture.width * 0.85), round(picture.height * 0.85)), Image.Resampling.LANCZOS)
