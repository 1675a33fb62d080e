"""Promises of the nodes' schemas, as the server tells them."""

import ast
from pathlib import Path
from typing import Any

import pytest

from stepwise_grpo.tests.nodes.graphs import ROOT
from stepwise_grpo.tools.workflow import inputs

IDS = {
    f"StepwiseGRPO_{name}"
    for name in (
        *("BaseModel", "DemoModel", "PromptList", "StepwiseSDESampler", "StepwiseSDE", "TweediePreviewReward", "CreditVisualizer"),
        *("GRPOLoRATrainer", "LiveLoRA", "HeldOutPictures", "RecommendedSettings", "PlacementReward", "WarmthReward", "ContrastReward", "CompressibilityReward"),
    )
}
SOCKETS = {"STEPWISE_GRPO_TRAJECTORY", "STEPWISE_GRPO_CREDIT", "STEPWISE_GRPO_REWARD"}


@pytest.fixture(scope="module")
def info(server) -> dict[str, Any]:
    return server.object_info()


@pytest.fixture(scope="module")
def ours(info) -> dict[str, Any]:
    return {name: node for name, node in info.items() if name.startswith("StepwiseGRPO_")}


def test_exactly_the_promised_nodes_exist(ours):
    assert set(ours) == IDS


def test_everything_explains_itself(ours):
    for name, node in ours.items():
        assert len(node["description"]) > 30, name
        assert node["category"] == "Stepwise GRPO", name
        assert "Stepwise GRPO" in node["display_name"], name
        assert [(name, i) for i, _, options in inputs(node) if not options.get("tooltip")] == []
        assert all(node["output_tooltips"]), name


def test_our_own_sockets_carry_the_promised_names(ours):
    used = {kind for node in ours.values() for kind in [*node["output"], *(k for _, k, _ in inputs(node) if isinstance(k, str))]}
    assert {kind for kind in used if kind.startswith("STEPWISE")} == SOCKETS


def test_every_node_has_a_help_page(ours):  # what is in it: tests/test_help_pages.py
    assert {path.stem for path in (ROOT / "web" / "docs").glob("*.md")} == IDS


def test_the_page_is_served(server, ours):
    for name in ours:
        assert server._fetch(f"/extensions/stepwise-flow-grpo/docs/{name}.md", None).startswith(b"#")


@pytest.mark.parametrize("file", sorted((ROOT / "nodes").glob("*.py")), ids=lambda file: file.stem)
def test_a_node_is_a_schema_and_one_call(file: Path):
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == "execute":
            assert node.end_lineno - node.lineno + 1 <= 12, f"{file.name}: execute"
            assert not [n for n in ast.walk(node) if isinstance(n, ast.For | ast.While | ast.BinOp)], f"{file.name}: execute computes"
