"""tools/workflow.py: widgets from a bare list, links, defaults."""

import pytest

from stepwise_grpo.tools.workflow import WorkflowError, api_form

INFO = {
    "Noisy": {
        "display_name": "Noisy",
        "input": {
            "required": {"model": ["MODEL"], "noise_seed": ["INT", {}], "count": ["INT", {"control_after_generate": True}]},
            "optional": {"mode": [["soft", "hard"], {}], "text": ["STRING", {"forceInput": True}], "size": ["FLOAT", {"default": 0.5}]},
        },
        "input_order": {"required": ["model", "noise_seed", "count"], "optional": ["mode", "text", "size"]},
    },
    "Loader": {"display_name": "Loader", "input": {"required": {"seed": ["INT", {"control_after_generate": False, "default": 7}]}}},
    "Picker": {"display_name": "Picker", "input": {"required": {"law": ["COMBO", {"options": ["ddim", "cps"]}]}}},
}


def workflow(*nodes, links=()):
    return {"nodes": [{"id": i + 1, **node} for i, node in enumerate(nodes)], "links": list(links)}


def only(form):
    (node,) = form.values()
    return node["inputs"]


def test_control_values_behind_numbers_are_left_out():
    values = [3, "fixed", 4, "increment", "hard", 0.25]
    assert only(api_form(workflow({"type": "Noisy", "widgets_values": values}), INFO)) == {"noise_seed": 3, "count": 4, "mode": "hard", "size": 0.25}


def test_what_a_workflow_lacks_is_the_default():
    assert only(api_form(workflow({"type": "Noisy"}), INFO)) == {"noise_seed": 0, "count": 0, "mode": "soft", "size": 0.5}
    assert only(api_form(workflow({"type": "Picker"}), INFO)) == {"law": "ddim"}


def test_a_seed_that_asks_for_no_control_has_none():
    assert only(api_form(workflow({"type": "Loader", "widgets_values": [5]}), INFO)) == {"seed": 5}


def test_links_replace_widget_values_and_pass_through_reroutes():
    nodes = (
        {"type": "Loader", "widgets_values": [1]},
        {"type": "Reroute", "inputs": [{"name": "", "link": 1}]},
        {"type": "Noisy", "widgets_values": [3, "fixed"], "inputs": [{"name": "model", "link": 2}, {"name": "noise_seed", "link": 3}]},
    )
    links = [[1, 1, 0, 2, 0, "*"], [2, 2, 0, 3, 0, "MODEL"], [3, 1, 1, 3, 1, "INT"]]
    form = api_form(workflow(*nodes, links=links), INFO)
    assert set(form) == {"1", "3"}
    assert form["3"]["inputs"]["model"] == ["1", 0]
    assert form["3"]["inputs"]["noise_seed"] == ["1", 1]


def test_notes_are_left_out_and_titles_kept():
    form = api_form(workflow({"type": "MarkdownNote", "widgets_values": ["hello"]}, {"type": "Picker", "title": "My pick"}), INFO)
    assert [node["_meta"]["title"] for node in form.values()] == ["My pick"]


@pytest.mark.parametrize(
    "node, says",
    [
        ({"type": "Gone"}, "no node 'Gone'"),
        ({"type": "Picker", "mode": 4}, "bypassed"),
        ({"type": "Picker", "widgets_values": ["ddim", "more"]}, "more widget values"),
        ({"type": "Picker", "widgets_values": {"law": "ddim"}}, "another way than a list"),
    ],
)
def test_what_does_not_fit_is_named(node, says):
    with pytest.raises(WorkflowError, match=says):
        api_form(workflow(node), INFO)
