"""``python dev.py models``: write the tables of docs/models.md and of a help page anew, from training/defaults.py and docs/model_sizes.json.

Everything between a table's two marks is replaced; the rest of a page is written by hand.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..training.defaults import ROWS, Row, by_source, shown
from ..training.job import read_json, write_whole

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"docs/models.md": ("settings", "sources", "sizes"), "web/docs/StepwiseGRPO_RecommendedSettings.md": ("settings",)}
SIZES = ROOT / "docs" / "model_sizes.json"
GIB = 2**30


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py models", description="Write the tables of docs/models.md and of a help page anew.")
    parser.parse_args(arguments)
    for page in PAGES:
        text = updated(page, (ROOT / page).read_text("utf-8"), read_json(SIZES))
        write_whole(ROOT / page, text.encode("utf-8"))
        print(f"{page} is up to date")
    return 0


def updated(page: str, text: str, sizes: dict[str, Any] | None) -> str:
    """A page's text with its tables made anew; ``sizes`` is what docs/model_sizes.json holds, None where there is no such file."""
    tables = {"settings": settings(), "sources": sources(), "sizes": cards(sizes)}
    for name in PAGES[page]:
        start, end, content = f"<!-- {name}: written by python dev.py models -->", f"<!-- end of {name} -->", tables[name]
        if text.count(start) != 1 or text.count(end) != 1:
            raise ValueError(f"{page} must have each of these lines once: {start} and {end}")
        before, rest = text.split(start)
        after = rest.split(end)[1]
        text = f"{before}{start}\n{content}\n{end}{after}"
    return text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def settings() -> str:
    """One line for each row of the table of recommended settings."""
    sampling = ("steps", "to look", "cfg", "guidance", "law, eta", "shift", "px")
    head = ("model", "kind", *sampling, "LoRA: targets, rank, alpha", "learning rate", "clip", "beta", "group")
    return table(head, [_cells(row) for row in ROWS])


def _cells(row: Row) -> list[str]:
    text = {name: shown(value) for name, value in vars(row).items()}
    text["law"] += f" {text['eta']}"
    text["targets"] += f" {text['rank']}, {text['alpha']}"
    sampling = ("steps", "view_steps", "cfg", "guidance", "law", "shift", "size")
    return [text[key] for key in ("name", "kind", *sampling, "targets", "learning_rate", "clip", "beta", "group_size")]


def sources() -> str:
    """For each row its class names, the node that sets its shift, and its values under their sources."""
    lines = []
    for row in ROWS:
        classes = ", ".join(f"`{name}`" for name in row.classes) or "every other class"
        node = "" if row.shift is None else f"; shift by `{row.shift_node}`"
        told = "; ".join(f"*{source}*: {', '.join(phrases)}" for source, phrases in by_source(row).items())
        lines.append(f"- **{row.name}** ({classes}{node}). {told}.")
    return "\n".join(lines)


def cards(sizes: dict[str, Any] | None) -> str:
    """The smallest card for each model and picture or clip, as far as it was computed; two numbers are bf16 and fp8."""
    if not sizes:
        return "Not computed yet."
    head = ("model", "parameters", "LoRA; cfg", "picture or clip", "weights, GiB", "LoRA and optimiser, GiB", "one state, GiB", "smallest card, GiB", "weights streamed from RAM, GiB")
    lines = [_card(name, model, key) for name, model in sizes["models"].items() for key, value in model.items() if isinstance(value, dict)]
    return table(head, lines)


def _card(name: str, model: dict[str, Any], resolution: str) -> list[str]:
    both = [model[resolution][precision] for precision in ("bf16", "fp8")]
    pair = lambda key, unit: " / ".join(_in(entry[key], unit) for entry in both)
    adapter = f"{model['targets']}, rank {model['rank']}; {model['cfg']:g}"
    rest = (("peak_of_one_row", GIB), ("card_gib", 1), ("card_gib_streaming", 1))
    lora = _in(both[0]["lora_and_optimiser"], GIB)
    return [name, f"{model['parameters'] / 1e9:.1f} B", adapter, resolution, pair("weights", GIB), lora, *(pair(key, unit) for key, unit in rest)]


def _in(value: float | None, unit: int) -> str:
    return "-" if value is None else f"{value / unit:.1f}".removesuffix(".0")
