"""Promises of every workflow in workflows/, against the nodes of a real server."""

import json
from typing import Any

import pytest
from PIL import Image

from stepwise_grpo.tools.local import training_prompts
from stepwise_grpo.tools.workflow import api_form, inputs
from stepwise_grpo.tools.workflows import FOLDER, WORKFLOWS
from stepwise_grpo.tools.workflows.file import build, text_of
from stepwise_grpo.tools.workflows.models import FAMILIES
from stepwise_grpo.tools.workflows.parts import BLUE, Part, Workflow, column
from stepwise_grpo.training.defaults import named
from stepwise_grpo.training.prompts import prompt_lines

NAMES = ["first_loop", "stepwise_against_uniform", "sd35", "flux", "qwen_image", "z_image"]
OWN_MODEL = NAMES[2:]
LIST, LIVE, SAMPLER, LOOKS, TRAINER = (f"StepwiseGRPO_{name}" for name in ("PromptList", "LiveLoRA", "StepwiseSDESampler", "HeldOutPictures", "GRPOLoRATrainer"))


@pytest.fixture(scope="module")
def info(comfy_server) -> dict[str, Any]:
    return comfy_server.object_info()


def read(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def graph_of(name: str, info: dict[str, Any]) -> dict[str, Any]:
    return api_form(read(name), info)


def of_kind(graph: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [node["inputs"] for node in graph.values() if node["class_type"] == kind]


def used_outputs(workflow: dict[str, Any]) -> dict[str, Any]:
    """Without outputs that no link leaves: a newer ComfyUI may give a stock node one more."""
    nodes = [{**node, "outputs": [output for output in node["outputs"] if output["links"]]} for node in workflow["nodes"]]
    return {**workflow, "nodes": nodes}


def test_the_folder_holds_these_workflows_each_with_a_thumbnail_and_nothing_else():
    assert [workflow.name for workflow in WORKFLOWS] == NAMES
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}{ending}" for name in NAMES for ending in (".json", ".jpg")}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.name)
class TestEach:
    def test_the_file_is_what_its_description_says(self, workflow, info):
        made = json.loads(text_of(workflow, info))
        assert used_outputs(made) == used_outputs(read(workflow.name)), "run: python dev.py workflows"

    def test_every_input_is_filled_with_what_the_server_takes(self, workflow, info):
        graph = graph_of(workflow.name, info)
        files = {model.name for part in workflow.parts for model in part.models}
        for id, node in graph.items():
            specs = {name: (kind, options) for name, kind, options in inputs(info[node["class_type"]])}
            required = set(info[node["class_type"]]["input"].get("required", {}))
            assert required <= set(node["inputs"]) <= set(specs), (id, node["class_type"])
            for name, value in node["inputs"].items():
                if value not in files if isinstance(value, str) else True:
                    check_value(graph, info, value, *specs[name])

    def test_links_end_at_the_inputs_that_name_them(self, workflow):
        file = read(workflow.name)
        nodes = {node["id"]: node for node in file["nodes"]}
        for number, source, slot, target, entry, kind in file["links"]:
            assert number in nodes[source]["outputs"][slot]["links"] and nodes[source]["outputs"][slot]["type"] == kind
            assert nodes[target]["inputs"][entry]["link"] == number and nodes[target]["inputs"][entry]["type"] == kind
        held = [entry["link"] for node in file["nodes"] for entry in node["inputs"] if entry["link"] is not None]
        assert sorted(held) == sorted(link[0] for link in file["links"])

    def test_no_two_nodes_or_groups_overlap_and_every_node_lies_in_a_group(self, workflow):
        file = read(workflow.name)
        nodes = [box(node["pos"], node["size"], 30) for node in file["nodes"]]
        frames = [box(group["bounding"][:2], group["bounding"][2:]) for group in file["groups"]]
        for boxes in (nodes, frames):
            assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]
        assert all(any(f[0] < n[0] and f[1] < n[1] and n[2] < f[2] and n[3] < f[3] for f in frames) for n in nodes)
        assert all(group["title"] and group["color"] for group in file["groups"])

    def test_text_can_be_read_where_the_page_shows_it_all(self, workflow):
        """The page's "fit view" on 1920 x 1080 px takes three quarters of it, and draws no text below a scale of 8/14."""
        frames = [group["bounding"] for group in read(workflow.name)["groups"]]
        width, height = max(x + w for x, _, w, _ in frames), max(y + h for _, y, _, h in frames)
        scale = min(0.75 * 1920 / width, 0.75 * 1080 / height)
        two_runs = workflow.name == "stepwise_against_uniform"  # with a Credit Visualizer each; its headlines are larger than a node's text
        assert scale > (0.54 if two_runs else 8 / 14)

    def test_each_run_has_one_name_and_seeds_count_up(self, workflow, info):
        file, graph = read(workflow.name), graph_of(workflow.name, info)
        assert sorted(node["run_name"] for node in of_kind(graph, LIVE)) == sorted(node["run_name"] for node in of_kind(graph, TRAINER))
        controls = {node["id"]: [value for value in node["widgets_values"] if value in ("increment", "fixed", "randomize")] for node in file["nodes"]}
        assert {tuple(controls[node["id"]]) for node in file["nodes"] if node["type"] == SAMPLER} == {("increment",)}
        assert sorted(controls[node["id"]] for node in file["nodes"] if node["type"] == LIST) == [["fixed"], ["increment"]]

    def test_held_out_prompts_are_held_out_and_looked_at_in_the_same_order(self, workflow, info):
        lists = of_kind(graph_of(workflow.name, info), LIST)
        (held,) = [node for node in lists if node["prompts_per_iteration"] == len(prompt_lines(node["prompts"]))]
        (trained,) = [node for node in lists if node is not held]
        assert not set(prompt_lines(held["prompts"])) & set(prompt_lines(trained["prompts"])) and held["iteration"] == 0
        assert len(set(prompt_lines(trained["prompts"]))) >= 12

    def test_the_thumbnail_is_small(self, workflow):
        file = FOLDER / f"{workflow.name}.jpg"
        assert file.stat().st_size <= 60 * 1024
        with Image.open(file) as picture:
            assert picture.format == "JPEG" and picture.width == picture.height and 600 <= picture.width <= 700  # the browser shows squares


def box(pos: list[int], size: list[int], title: int = 0) -> tuple[int, int, int, int]:
    return pos[0], pos[1] - title, pos[0] + size[0], pos[1] + size[1]


def check_value(graph: dict[str, Any], info: dict[str, Any], value: Any, kind: Any, options: dict[str, Any]) -> None:
    if isinstance(value, list):
        output = info[graph[value[0]]["class_type"]]["output"][value[1]]
        assert output == ("COMBO" if isinstance(kind, list) else kind)
    elif isinstance(kind, list) or kind == "COMBO":
        assert value in (kind if isinstance(kind, list) else options["options"])
    elif kind in ("INT", "FLOAT"):
        assert options.get("min", value) <= value <= options.get("max", value)


def test_no_run_name_is_used_by_two_workflows(info):
    runs = [node["run_name"] for name in NAMES for node in of_kind(graph_of(name, info), TRAINER)]
    assert len(set(runs)) == len(runs) == 7


def test_the_two_runs_of_the_comparison_differ_in_credit_alone(info):
    graph = graph_of("stepwise_against_uniform", info)
    for kind in (SAMPLER, LIVE, TRAINER, LOOKS, "StepwiseGRPO_TweediePreviewReward"):
        one, other = ({name: value for name, value in node.items() if not own(graph, value)} for node in of_kind(graph, kind))
        differing = {name for name in one if one[name] != other[name]}
        assert differing == {LIVE: {"run_name"}, TRAINER: {"run_name"}, "StepwiseGRPO_TweediePreviewReward": {"credit_scheme"}}.get(kind, set()), kind
    assert [node["credit_scheme"] for node in of_kind(graph, "StepwiseGRPO_TweediePreviewReward")] == ["centred", "uniform"]


def own(graph: dict[str, Any], value: Any) -> bool:
    """Whether a value is a link from a node of which each run has one of its own."""
    return isinstance(value, list) and len(of_kind(graph, graph[value[0]]["class_type"])) == 2 and graph[value[0]]["class_type"] != LIST


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_ones_own_model_starts_with_what_is_recommended_for_it(family, info):
    graph, row = graph_of(family.name, info), named(family.row)
    (sampler,), (train,), (look,) = of_kind(graph, SAMPLER), of_kind(graph, TRAINER), of_kind(graph, LOOKS)
    table = next(id for id, node in graph.items() if node["class_type"] == "StepwiseGRPO_RecommendedSettings")
    outputs = info["StepwiseGRPO_RecommendedSettings"]["output_name"]
    assert {name: outputs[sampler[name][1]] for name in ("group_size", "cfg", "law", "eta") if sampler[name][0] == table} == {name: name for name in ("group_size", "cfg", "law", "eta")}
    assert (train["learning_rate"], train["clip"], train["rank"], train["alpha"], train["targets"]) == (0, 0, 0, 0, "auto") and train["beta"] == row.beta
    assert graph[look["sigmas"][0]]["inputs"]["steps"] == row.view_steps and look["cfg"] == [table, outputs.index("cfg")]
    assert [node["guidance"] for node in of_kind(graph, "FluxGuidance")] == [[table, outputs.index("guidance")]] * (2 if row.guidance else 0)
    assert [node["shift"] for node in of_kind(graph, "ModelSamplingAuraFlow")] == [[table, outputs.index("shift")]] * family.shifted
    assert row.shift_node == "ModelSamplingAuraFlow" or not family.shifted


@pytest.mark.parametrize("name", OWN_MODEL)
def test_every_file_is_offered_for_download_where_its_loader_stands(name):
    for node in read(name)["nodes"]:
        files = {value for value in node["widgets_values"] if isinstance(value, str) and value.endswith(".safetensors")}
        offered = node["properties"].get("models", [])
        assert {model["name"] for model in offered} == files
        for model in offered:
            assert model["url"].startswith("https://huggingface.co/") and model["url"].endswith("/" + model["name"])
            assert model["directory"] in ("checkpoints", "diffusion_models", "text_encoders", "vae")


def test_the_first_loop_keeps_its_nodes_and_the_demos_prompts(info):
    graph = graph_of("first_loop", info)
    kinds = ("DemoModel", LIVE, LIST, "CLIPTextEncode", "EmptySD3LatentImage", "BasicScheduler", SAMPLER, "PlacementReward", "TweediePreviewReward", "CreditVisualizer", "PreviewImage", TRAINER)
    assert [graph[str(i + 1)]["class_type"].removeprefix("StepwiseGRPO_") for i in range(12)] == [kind.removeprefix("StepwiseGRPO_") for kind in kinds]
    assert prompt_lines(graph["3"]["inputs"]["prompts"]) == training_prompts()


def test_the_server_lists_the_workflows_as_templates(comfy_server):
    assert set(comfy_server.get("/workflow_templates")["stepwise-flow-grpo"]) == set(NAMES)


# the generator


def one(*parts: Part) -> Workflow:
    return Workflow("small", (((column("all", BLUE, 300, *parts),),),))


@pytest.mark.parametrize(
    "parts, says",
    [
        ((Part("a", "StepwiseGRPO_DemoModel"), Part("b", LIVE, {"model": "a.LATENT"})), "not one output 'LATENT'"),
        ((Part("a", "StepwiseGRPO_DemoModel"), Part("a", "StepwiseGRPO_DemoModel")), "share a key"),
        ((Part("a", LIVE, values={"run": "mine"}),), "no widget run"),
    ],
)
def test_what_the_server_does_not_know_is_named(parts, says, info):
    with pytest.raises(ValueError, match=says):
        build(one(*parts), info)


def test_nodes_stand_below_each_other_with_numbers_of_their_own_or_the_next_free(info):
    made = build(one(Part("a", LIVE, id=2), Part("b", "StepwiseGRPO_DemoModel"), Part("c", "StepwiseGRPO_DemoModel")), info)
    assert {node["id"]: node["type"] for node in made["nodes"]} == {2: LIVE, 1: "StepwiseGRPO_DemoModel", 3: "StepwiseGRPO_DemoModel"}
    tops = [node["pos"][1] for node in made["nodes"]]
    assert tops == sorted(tops) and len(set(tops)) == 3
