"""Promises of the nodes' schemas, as the server tells them, and of the shipped workflow."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from stepwise_grpo.tests.nodes.graphs import ROOT, WORKFLOW
from stepwise_grpo.tools.workflow import api_form, inputs

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


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    return json.loads(WORKFLOW.read_text("utf-8"))


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


def test_workflow_is_accepted_by_the_server_as_it_lies_there(info, workflow):
    graph = api_form(workflow, info)
    for id, node in graph.items():
        specs = {name: (kind, options) for name, kind, options in inputs(info[node["class_type"]])}
        required = set(info[node["class_type"]]["input"].get("required", {}))
        assert required <= set(node["inputs"]) <= set(specs), (id, node["class_type"])
        for name, value in node["inputs"].items():
            check_value(graph, info, value, *specs[name])


def check_value(graph: dict[str, Any], info: dict[str, Any], value: Any, kind: Any, options: dict[str, Any]) -> None:
    if isinstance(value, list):
        assert info[graph[value[0]]["class_type"]]["output"][value[1]] == kind
    elif isinstance(kind, list) or kind == "COMBO":
        assert value in (kind if isinstance(kind, list) else options["options"])
    elif kind in ("INT", "FLOAT"):
        assert options.get("min", value) <= value <= options.get("max", value)


def test_workflow_counts_up_at_every_queue(workflow):
    controls = {node["type"]: node["widgets_values"] for node in workflow["nodes"]}
    assert controls["StepwiseGRPO_StepwiseSDESampler"].count("increment") == 1
    assert controls["StepwiseGRPO_PromptList"].count("increment") == 1


def test_workflow_uses_the_demos_prompts(workflow):
    (node,) = [node for node in workflow["nodes"] if node["type"] == "StepwiseGRPO_PromptList"]
    assert node["widgets_values"][0].split("\n") == (ROOT / "demo" / "prompts.txt").read_text("utf-8").split("\n")[:-1]


def test_workflow_boxes_do_not_overlap(workflow):
    def box(node):
        (x, y), (w, h) = node["pos"], node["size"]
        return x, y - 30, x + w, y + h

    boxes = [box(node) for node in workflow["nodes"]]
    for i, (l1, t1, r1, b1) in enumerate(boxes):
        assert not [(i, j) for j, (l2, t2, r2, b2) in enumerate(boxes) if i < j and l1 < r2 and l2 < r1 and t1 < b2 and t2 < b1]


def test_nothing_but_workflows_and_thumbnails_lies_in_workflows():
    assert {path.suffix for path in (ROOT / "workflows").iterdir()} <= {".json", ".jpg"}


def test_the_server_lists_the_workflow_as_a_template(server):
    assert "first_loop" in server.get("/workflow_templates")["stepwise-flow-grpo"]


@pytest.mark.parametrize("file", sorted((ROOT / "nodes").glob("*.py")), ids=lambda file: file.stem)
def test_a_node_is_a_schema_and_one_call(file: Path):
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == "execute":
            assert node.end_lineno - node.lineno + 1 <= 12, f"{file.name}: execute"
            assert not [n for n in ast.walk(node) if isinstance(n, ast.For | ast.While | ast.BinOp)], f"{file.name}: execute computes"
