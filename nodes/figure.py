"""The Credit Visualizer's figure: for each prompt thumbnails, a heat map member x step, and reward curves, over one time axis."""

import textwrap
from typing import Any

import numpy
import torch
from torch import Tensor

from ..training.trajectory import Credit

GROUPS, COLUMNS = 4, 2  # prompts shown, and side by side
STATES = 12  # thumbnails in a row, labels on the time axis
DPI = 100
WIDTH, HEIGHT, HEADER = 8.2, 6.3, 1.25  # inches: one prompt's block, and what lies above all blocks
LEFT, RIGHT, TOP, BOTTOM = 0.85, 0.1, 0.45, 0.75  # inches of a block kept free for labels
BEST, WORST, OTHER, MEAN = "#0b6e8a", "#b34a00", "#c4c4c4", "#222222"
COLOURS = "RdBu"  # red = made it worse, blue = made it better; told apart with every common colour blindness


def draw(credit: Credit) -> Tensor:
    """The figure as an IMAGE (1, H, W, 3). Uses no global state of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = most_telling(credit)
    shown = len(groups)
    columns = min(shown, COLUMNS)
    rows = -(-shown // columns)
    figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + HEADER), dpi=DPI, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    limit = colour_limit(credit)
    for place, group in enumerate(groups):
        block(figure, credit, group, limit, x=WIDTH * (place % columns), y=HEIGHT * (rows - 1 - place // columns))
    header(figure, credit, shown, limit)
    canvas.draw()
    return torch.from_numpy(numpy.asarray(canvas.buffer_rgba())[..., :3].copy()).float()[None] / 255


def most_telling(credit: Credit) -> list[int]:
    """The groups to show, in their order: those whose final rewards differ most."""
    spread = credit.rewards[-1].reshape(-1, credit.group_size).std(1, correction=0)
    return sorted(spread.argsort(descending=True, stable=True)[:GROUPS].tolist())


def shades(credit: Credit) -> Tensor:
    """(K, B) what the heat map shows: gains, or advantages where a uniform scheme looked at the final pictures only."""
    return credit.advantages if credit.gains.isnan().any() else credit.gains


def colour_limit(credit: Credit) -> float:
    """The same colours for all prompts, symmetric around 0; the loudest two hundredths are cut off."""
    return max(float(shades(credit).abs().flatten().quantile(0.98)), 1e-6)


def part(figure: Any, x: float, y: float, width: float, height: float) -> Any:
    """Axes at a place in inches."""
    across, up = figure.get_size_inches()
    return figure.add_axes((x / across, y / up, width / across, height / up))


def header(figure: Any, credit: Credit, shown: int, limit: float) -> None:
    """Title, the colours' meaning, the curves' meaning."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.lines import Line2D

    across, up = figure.get_size_inches()
    figure.text(LEFT / across, 1 - 0.4 / up, title(credit, shown), fontsize=16, va="center")
    bar = part(figure, LEFT + 1.3, up - HEADER + 0.3, 1.7, 0.16)
    figure.colorbar(ScalarMappable(Normalize(-limit, limit), COLOURS), cax=bar, orientation="horizontal", ticks=[-limit, 0, limit], format="%.2g")
    bar.tick_params(labelsize=11)
    worse, better = ("discouraged", "encouraged") if credit.gains.isnan().any() else ("made it worse", "better")
    bar.text(-0.04, 0.5, worse, transform=bar.transAxes, ha="right", va="center", fontsize=12)
    bar.text(1.04, 0.5, better, transform=bar.transAxes, ha="left", va="center", fontsize=12)
    lines = [Line2D([], [], color=c, linewidth=2.5, linestyle=s, label=label) for c, s, label in ((BEST, "-", "best"), (WORST, "-", "worst"), (MEAN, "--", "mean"))]
    figure.legend(handles=lines, loc="center left", bbox_to_anchor=((LEFT + 4.2) / across, 1 - 0.85 / up), ncols=3, fontsize=12, frameon=False, handlelength=1.6, columnspacing=1.2)


def title(credit: Credit, shown: int) -> str:
    law = f"{credit.schedule.law} {credit.schedule.eta:g}"
    line = f"{credit.reward.get('reward', '')} reward {credit.rewards[-1].mean():.3f}  ·  {credit.scheme} credit  ·  {law}"
    return line if shown == len(credit.texts) else f"{line}  ·  {shown} of {len(credit.texts)} prompts"


def block(figure: Any, credit: Credit, index: int, limit: float, x: float, y: float) -> None:
    """One prompt; (x, y) is the block's lower left corner in inches."""
    members = slice(index * credit.group_size, (index + 1) * credit.group_size)
    final = credit.rewards[-1, members]
    best, worst = int(final.argmax()), int(final.argmin())
    width, tile = WIDTH - LEFT - RIGHT, (WIDTH - LEFT - RIGHT) / STATES
    place = lambda y_part, height: part(figure, x + LEFT, y + BOTTOM + y_part, width, height)
    top = place(HEIGHT - BOTTOM - TOP - tile, tile)
    top.set_title(textwrap.shorten(credit.texts[index], 76, placeholder=" …") or "(prompt without text)", fontsize=14, loc="left", pad=7)
    thumbnails(top, credit, members.start + best, f"best\n{final[best]:.2f}", BEST)
    thumbnails(place(HEIGHT - BOTTOM - TOP - 2.15 * tile, tile), credit, members.start + worst, f"worst\n{final[worst]:.2f}", WORST)
    rest = HEIGHT - BOTTOM - TOP - 2.15 * tile - 0.3
    heat_map(place(0.46 * rest + 0.1, 0.54 * rest), credit, members, limit)
    curves(place(0, 0.46 * rest), credit, members, best, worst)


def time_axis(axes: Any, credit: Credit) -> None:
    """State k lies at x = k, step k between k and k + 1."""
    margin = -shown_states(credit).step / 2
    axes.set_xlim(-margin, credit.schedule.steps + margin)
    axes.tick_params(labelsize=12)


def shown_states(credit: Credit) -> range:
    """Every state, or so many that their thumbnails fit, always with the finished picture."""
    steps = credit.schedule.steps
    return range(steps, -1, -(steps + 1) // STATES)


def thumbnails(axes: Any, credit: Credit, row: int, label: str, colour: str) -> None:
    """Clean estimates of one member; states nobody looked at stay empty."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    states = shown_states(credit)
    room = DPI * (WIDTH - LEFT - RIGHT) * min(-states.step / (credit.schedule.steps + 1), 1 / STATES)  # px
    time_axis(axes, credit)
    for k in states:
        if credit.thumbnails is not None and not credit.rewards[k, row].isnan():
            picture = credit.thumbnails[k, row].cpu().numpy().clip(0, 1)
            image = OffsetImage(picture, zoom=0.9 * room / max(picture.shape[:2]), dpi_cor=False, interpolation="bilinear")
            axes.add_artist(AnnotationBbox(image, (k, 0.5), pad=0.08, bboxprops={"edgecolor": colour, "linewidth": 1.5}))
    axes.set_ylabel(label, fontsize=12, rotation=0, ha="right", va="center", color=colour, labelpad=8)
    axes.set(ylim=(0, 1), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def heat_map(axes: Any, credit: Credit, members: slice, limit: float) -> None:
    """Members as rows, steps as columns; steps without randomness are hatched."""
    from matplotlib.patches import Rectangle

    steps, size = credit.schedule.steps, credit.group_size
    values = shades(credit)[:, members].T.cpu().numpy()
    axes.imshow(values, cmap=COLOURS, vmin=-limit, vmax=limit, aspect="auto", extent=(0, steps, size, 0), interpolation="nearest")
    box = {"facecolor": "white", "alpha": 0.85, "pad": 2, "edgecolor": "none"}
    for k in sorted({*range(steps)} - {*credit.schedule.stochastic}):
        axes.add_patch(Rectangle((k, 0), 1, size, fill=False, hatch="///", edgecolor="#777777", linewidth=0))
        axes.text(k + 0.5, size / 2, "not random", rotation=90, ha="center", va="center", fontsize=11, color="#333333", bbox=box)
    time_axis(axes, credit)
    axes.set_xticks([])
    axes.set_yticks([0.5, size - 0.5], ["1", str(size)])
    axes.set_ylabel("picture", fontsize=12)
    axes.spines[:].set_visible(False)


def curves(axes: Any, credit: Credit, members: slice, best: int, worst: int) -> None:
    """Reward of the clean estimates over t, a line a member; points where only some states were looked at."""
    rewards = credit.rewards[:, members].cpu().numpy()
    states = numpy.arange(len(rewards))
    marker = "o" if numpy.isnan(rewards).any() else None
    axes.plot(states, rewards, color=OTHER, linewidth=1, marker=marker)
    axes.plot(states, rewards[:, worst], color=WORST, linewidth=2.5, marker=marker)
    axes.plot(states, rewards[:, best], color=BEST, linewidth=2.5, marker=marker)
    axes.plot(states, rewards.mean(1), color=MEAN, linewidth=2, linestyle="--", marker=marker)
    time_axis(axes, credit)
    ticks = list(shown_states(credit))
    axes.set_xticks(ticks, [f"{credit.schedule.times[k]:.2f}" for k in ticks])
    axes.set_xlabel("t: from noise (1) to picture (0)", fontsize=12)
    axes.set_ylabel("reward", fontsize=12)
    axes.grid(axis="y", color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
