"""What the demo leaves for people: reward curve, before and after, and the table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor


def reward_curve(path: Path, curve: Sequence[float], before: float, after: float, title: str) -> None:
    """Mean reward of each iteration's rollouts, with the held-out reward before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(1, len(curve) + 1), curve, color="#1f77b4", marker="o", markersize=3, label="rollouts of the iteration")
    axes.plot([0, len(curve)], [before, after], linestyle="none", marker="D", color="#d62728", label="held-out prompts, plain sampling")
    axes.set(xlabel="iteration", ylabel="placement reward", ylim=(0, 1), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=130)


def contact_sheet(path: Path, prompts: Sequence[str], before: Tensor, after: Tensor, columns: int = 6) -> None:
    """Held-out pictures (N, H, W, 3) in pairs: before above, after below, with their prompts."""
    from matplotlib.figure import Figure

    shown = range(0, len(prompts), -(-len(prompts) // (4 * columns)))  # evenly over the list
    bands = -(-len(shown) // columns)
    figure = Figure(figsize=(2 * columns, 4.7 * bands), layout="constrained")
    grid = figure.subplots(2 * bands, columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for place, i in enumerate(shown):
        band, column = divmod(place, columns)
        for row, images, label in ((2 * band, before, "before"), (2 * band + 1, after, "after")):
            grid[row, column].imshow(images[i].numpy())
            grid[row, column].set_title(f"{_wrapped(prompts[i])}\n{label}" if label == "before" else label, fontsize=7)
    figure.savefig(path, dpi=110)


def _wrapped(text: str, width: int = 30) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def print_table(result: dict[str, Any]) -> None:
    """The demo's figures in a few lines."""
    split = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result["time_split"].items())
    rows = [
        ("placement, held-out", f"{result['reward_before']:.3f} -> {result['reward_after']:.3f}"),
        ("place right, held-out", f"{result['place_before']:.0%} -> {result['place_after']:.0%}"),
        ("shape right, held-out", f"{result['shape_ok_before']:.0%} -> {result['shape_ok_after']:.0%}"),
        ("credit, law, seed", f"{result['credit']}, {result['law']}, {result['seed']}"),
        ("iterations", f"{result['iterations']} in {result['wall_s']:.0f} s ({split})"),
        ("LoRA keys in ComfyUI", f"{result['keys_matched']} of {result['keys_total']}"),
        ("trainer against stock loader", f"{result['parity_max_abs']:.1e} largest difference of the velocity"),
        ("LoRA", result["lora"]),
    ]
    print()
    for name, value in rows:
        print(f"  {name:30} {value}")
