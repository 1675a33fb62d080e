"""The thumbnails of the template browser: of the demo's workflows what they make, of the others the graph with the model's name."""

from collections.abc import Sequence

from .drawing import Picture, arrow, heat_map, put_row, sheet, tile
from .made import Compared, Learnt

WIDTH, HEIGHT, LIMIT = 640, 400, 60 * 1024


def first_loop(learnt: Learnt, film: Sequence[Picture], gains: Sequence[Sequence[float]]) -> Picture:
    """Held-out pictures before and after; below, how one picture comes about and what its group's steps earned."""
    ground, chosen = sheet(WIDTH, HEIGHT), changed(learnt.before, learnt.after, 4)
    for x, pictures in ((20, learnt.before), (356, learnt.after)):
        for row in range(2):
            put_row(ground, [pictures[i] for i in chosen[2 * row : 2 * row + 2]], x, 16 + row * 104, 98, 6)
    arrow(ground, 246, 118, 90)
    return with_film(ground, film, gains, 236)


def with_film(ground: Picture, film: Sequence[Picture], gains: Sequence[Sequence[float]], top: int) -> Picture:
    """A picture clearing up, and under each of its steps what that step earned in every picture of the group."""
    count = len(film)
    size = (WIDTH - 40 - 6 * (count - 1)) // count
    put_row(ground, film, 20, top, size, 6)
    heat_map(ground, gains, (20 + (size + 6) // 2, top + size + 8, (size + 6) * (count - 1), HEIGHT - top - size - 20))
    return ground


def changed(before: Sequence[Picture], after: Sequence[Picture], count: int) -> list[int]:
    """Where before and after differ most, in their order."""
    from PIL import ImageChops, ImageStat

    difference = [sum(ImageStat.Stat(ImageChops.difference(a, b)).mean) for a, b in zip(before, after)]
    return sorted(sorted(range(len(before)), key=lambda i: -difference[i])[:count])


def against(made: Compared) -> Picture:
    """The same group twice: cells of their own for each step, and one colour for a whole picture."""
    ground = sheet(WIDTH, HEIGHT)
    group = most_telling(made)
    members = range(group * made.group_size, (group + 1) * made.group_size)
    best_first = sorted(members, key=lambda i: -sum(list(made.advantages.values())[1][i]))
    size = (HEIGHT - 32) // made.group_size
    for column, advantages in enumerate(made.advantages.values()):
        x = 16 + column * 312
        for row, i in enumerate(best_first):
            ground.paste(tile(made.pictures[i], size - 4), (x + 252, 16 + row * size))
        heat_map(ground, [advantages[i][:-1] for i in best_first], (x, 16, 246, size * made.group_size))
    return ground


def most_telling(made: Compared) -> int:
    """The group whose steps differ most: where signs change along a picture."""
    stepwise = next(iter(made.advantages.values()))
    groups = range(len(stepwise) // made.group_size)
    turns = lambda row: sum(a * b < 0 for a, b in zip(row, row[1:]))
    spread = lambda group: sum(abs(value) for row in stepwise[group * made.group_size : (group + 1) * made.group_size] for value in row)
    return max(groups, key=lambda group: (spread(group) > 0, sum(turns(row) for row in stepwise[group * made.group_size : (group + 1) * made.group_size])))
