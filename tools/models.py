"""``python dev.py models``: write the tables of docs/models.md anew, from training/defaults.py and docs/model_sizes.json.

Everything between a table's two marks is replaced; the rest of the page is written by hand.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..training.defaults import ROWS, Row, by_source, shown
from ..training.job import read_json

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE, SIZES = "models.md", "model_sizes.json"
GIB, MIB = 2**30, 2**20


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py models", description="Write the tables of docs/models.md anew.")
    parser.parse_args(arguments)
    page = DOCS / PAGE
    page.write_text(updated(page.read_text("utf-8"), read_json(DOCS / SIZES)), "utf-8", newline="\n")
    print(f"{page} is up to date")
    return 0


def updated(text: str, sizes: list[dict[str, Any]] | None) -> str:
    """The page with its tables made anew; ``sizes`` is what docs/model_sizes.json holds, None where there is no such file."""
    for name, content in (("settings", settings()), ("sources", sources()), ("sizes", cards(sizes))):
        start, end = f"<!-- {name}: written by python dev.py models -->", f"<!-- end of {name} -->"
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"docs/{PAGE} must have each of these lines once: {start} and {end}")
        before, rest = text.split(start)
        after = rest.split(end)[1]
        text = f"{before}{start}\n{content}\n{end}{after}"
    return text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def settings() -> str:
    """One line for each row of the table of recommended settings."""
    head = ("model", "kind", "steps", "to look", "cfg", "guidance", "law, eta", "shift", "px", "LoRA: targets, rank, alpha", "learning rate", "clip", "beta", "group")
    return table(head, [_cells(row) for row in ROWS])


def _cells(row: Row) -> list[str]:
    text = {name: shown(value) for name, value in vars(row).items()}
    joined = [f"{text['law']} {text['eta']}", text["shift"], text["size"], f"{text['targets']} {text['rank']}, {text['alpha']}"]
    return [row.name, row.kind, *(text[key] for key in ("steps", "view_steps", "cfg", "guidance")), *joined, *(text[key] for key in ("learning_rate", "clip", "beta", "group_size"))]


def sources() -> str:
    """For each row its class names, the node that sets its shift, and its values under their sources."""
    lines = []
    for row in ROWS:
        classes = ", ".join(f"`{name}`" for name in row.classes) or "every other class"
        node = "" if row.shift is None else f"; shift by `{row.shift_node}`"
        told = "; ".join(f"*{source}*: {', '.join(phrases)}" for source, phrases in by_source(row).items())
        lines.append(f"- **{row.name}** ({classes}{node}). {told}.")
    return "\n".join(lines)


def cards(sizes: list[dict[str, Any]] | None) -> str:
    """The smallest card for each model and size of picture, as far as it was computed."""
    if not sizes:
        return "Not computed yet."
    head = ("model", "px", "tokens", "weights bf16, GiB", "weights fp8, GiB", "one row, MiB", "smallest card, GiB", "with weights streamed from RAM, GiB")
    return table(head, [_card(size) for size in sizes])


def _card(size: dict[str, Any]) -> list[str]:
    resolution = size["resolution"]
    return [
        size["model"],
        shown(tuple(resolution)) if isinstance(resolution, list) else str(resolution),
        shown(size.get("tokens")),
        *(_in(size.get(key), unit) for key, unit in (("weights_bf16_bytes", GIB), ("weights_fp8_bytes", GIB), ("row_bytes", MIB))),
        *(_in(size.get(key), 1) for key in ("smallest_card_gib", "smallest_card_streaming_gib")),
    ]


def _in(value: float | None, unit: int) -> str:
    return "-" if value is None else f"{value / unit:.1f}".removesuffix(".0")
