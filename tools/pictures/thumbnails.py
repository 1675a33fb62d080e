"""The thumbnails of the template browser: of the demo's workflows what they make, of the others the graph with the model's name."""

from collections.abc import Sequence
from statistics import pstdev

from .drawing import Picture, arrow, frame, heat_map, put_row, sheet, tile
from .made import Compared, Learnt

SIDE, LIMIT = 640, 60 * 1024  # the browser shows squares


def first_loop(learnt: Learnt, made: Compared) -> Picture:
    """Held-out pictures before and after; below, how one picture comes about and what its group's steps earned."""
    ground, chosen = sheet(SIDE, SIDE), sorted(range(len(learnt.scores)), key=lambda i: learnt.scores[i][0] - learnt.scores[i][1])[:4]
    for x, side, pictures in ((20, 0, learnt.before), (362, 1, learnt.after)):
        for place, i in enumerate(chosen):
            spot = (x + place % 2 * 132, 24 + place // 2 * 132)
            ground.paste(tile(pictures[i], 126), spot)
            frame(ground, spot, 126, learnt.scores[i][side] > 0.5)
    arrow(ground, 290, 153, 62)
    rows = most_telling(made)
    best = max(rows, key=lambda i: sum(abs(gain) for gain in made.gains[i]))
    return with_film(ground, made.previews[best], [made.gains[i] for i in sorted(rows, key=lambda i: -sum(made.gains[i]))], 320)


def with_film(ground: Picture, film: Sequence[Picture], gains: Sequence[Sequence[float]], top: int) -> Picture:
    """A picture clearing up, and between its states what each step earned in every picture of the group."""
    count, gap = len(film), 6
    size = (SIDE - 40 - gap * (count - 1)) // count
    put_row(ground, film, 20, top, size, gap)
    heat_map(ground, gains, (20 + (size + gap) // 2, top + size + 8, (size + gap) * (count - 1), SIDE - top - size - 26))
    return ground


def against(made: Compared) -> Picture:
    """The same pictures twice: a colour for each step, and one colour for a whole picture."""
    ground, rows = sheet(SIDE, SIDE), most_telling(made)
    stepwise, uniform = made.advantages.values()
    best_first = sorted(rows, key=lambda i: -uniform[i][0])
    size = 296 // made.group_size
    for y, advantages in ((14, stepwise), (330, uniform)):
        heat_map(ground, [advantages[i][:-1] for i in best_first], (14, y, 570, size * made.group_size))
        for row, i in enumerate(best_first):
            ground.paste(tile(made.previews[i][-1], size - 3), (588, y + row * size))
    return ground


def most_telling(made: Compared) -> range:
    """The rows of the group whose pictures end most differently."""
    return max(made.groups, key=lambda rows: pstdev(sum(made.gains[i]) for i in rows))
