"""NOTATION.md keeps its promises: every metric, law, scheme and setting is defined, and what it says of the code is true."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from stepwise_grpo.tests.analytic import JOB, NEGATIVE, PROMPTS, AnalyticPolicy, Brightness, decode, packed, plan
from stepwise_grpo.training import config
from stepwise_grpo.training.config import Job, Origin, PreviewSettings, UpdateSettings, to_json
from stepwise_grpo.training.core import advantages
from stepwise_grpo.training.core.transitions import LAWS
from stepwise_grpo.training.graph_run import GraphRun
from stepwise_grpo.training.iterate import iterate
from stepwise_grpo.training.job import RunFolder
from stepwise_grpo.training.optimiser import make_optimiser

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "NOTATION.md").read_text("utf-8")


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """Cells of a section's table without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(text: str) -> set[str]:
    return set(re.findall(r"`([A-Za-z_]+)`", text))


@pytest.fixture(scope="module")
def event(tmp_path_factory) -> dict:
    """A real event, with every metric an update can have."""
    folder = RunFolder(tmp_path_factory.mktemp("output"), "r")
    folder.agree_on_job(to_json(JOB))
    folder.queue(packed(AnalyticPolicy(), plan(beta=0.1, ema=0.9), origin=Origin()))
    (path,) = folder.waiting()
    return GraphRun(folder, JOB, AnalyticPolicy()).train(path, path.stem.split("-")[-1])


def test_every_metric_of_an_event_is_defined_and_no_other(event):
    defined = {name for cells in rows("What an event tells") for name in names(cells[0])}
    assert defined == set(event)


def test_the_parts_of_the_rollouts_time_are_named(event):
    cells = next(cells for cells in rows("What an event tells") if "`rollout_seconds`" in cells[0])
    assert names(cells[1]) == set(event["rollout_seconds"])


def test_what_iterate_adds_is_named(event):
    policy, the_plan = AnalyticPolicy(), plan()
    _, metrics = iterate(policy, make_optimiser(policy, the_plan.update), the_plan, PROMPTS, NEGATIVE, decode, Brightness(), 0)
    assert set(metrics) - set(event) == {"seconds_rollout", "seconds_total"}
    assert set(metrics) <= names(section("What an event tells"))


def test_the_table_of_laws_has_their_defaults_and_ranges():
    found = {cells[0].strip("`"): cells[1] for cells in rows("Laws of a step")}
    assert found == {name: f"{law.default_eta:g}, 0..{law.max_eta:g}" for name, law in LAWS.items()}


def test_the_table_of_credit_has_every_scheme_and_its_constants():
    assert {cells[0].strip("`") for cells in rows("Credit")} == set(advantages.SCHEMES)
    assert f"eps = {advantages.EPS:.0e}".replace("e-0", "e-") in section("Credit") and f"+-{advantages.CLIP:g}" in section("Credit")


def documented() -> set[str]:
    """Fields of config.py with a docstring under them."""
    found = set()
    for node in ast.parse(Path(config.__file__).read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for one, two in zip(node.body, node.body[1:]):
                if isinstance(one, ast.AnnAssign) and isinstance(two, ast.Expr) and isinstance(two.value, ast.Constant):
                    found.add(f"{node.name}.{one.target.id}")
    return found


@pytest.mark.parametrize("kind", [Job, UpdateSettings, Origin, PreviewSettings])
def test_every_setting_is_defined_here_or_under_its_field(kind):
    missing = {field.name for field in fields(kind) if f"{kind.__name__}.{field.name}" not in documented()}
    assert missing <= names(TEXT)


def test_every_name_of_the_symbols_exists_in_the_code():
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "training").rglob("*.py"))
    for cells in rows("Symbols"):
        for name in names(cells[1]):
            assert re.search(rf"\b{name}\b", code), name


def test_every_row_has_its_source():
    for title in ("Symbols", "Laws of a step", "Credit"):
        for cells in rows(title):
            assert cells[-1] and len(cells) == len(rows(title)[0]), cells


def test_it_is_one_page():
    assert len(TEXT.splitlines()) <= 130
