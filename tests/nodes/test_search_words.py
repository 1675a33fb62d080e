"""Every node is found by words an artist would type, where ComfyUI's search knows such words."""

import asyncio
from dataclasses import fields
from pathlib import Path

import pytest

from stepwise_grpo.tests.nodes.graphs import ROOT


@pytest.fixture(scope="module")
def nodes(comfy, tmp_path_factory):
    import folder_paths

    from stepwise_grpo.nodes import StepwiseGRPOExtension

    before = folder_paths.get_output_directory()
    folder_paths.set_output_directory(str(tmp_path_factory.mktemp("output")))
    yield {node.GET_SCHEMA().node_id: node for node in asyncio.run(StepwiseGRPOExtension().get_node_list())}
    folder_paths.set_output_directory(before)


def test_every_node_has_words_and_no_other(nodes):
    from stepwise_grpo.nodes.search_words import WORDS

    assert set(WORDS) == set(nodes)
    assert not [node for node, words in WORDS.items() if len(words) < 5 or len(set(words)) < len(words)]
    everything = {word for words in WORDS.values() for word in words}
    assert {"GRPO", "RL", "reinforcement learning", "fine-tune", "train lora", "reward", "score", "heat map", "rollout", "load lora"} <= everything


def test_the_words_reach_the_page_where_comfyui_has_a_place_for_them(nodes):
    from comfy_api.latest import io

    from stepwise_grpo.nodes.search_words import WORDS

    known = "search_aliases" in {field.name for field in fields(io.Schema)}
    told = {name: vars(node.GET_NODE_INFO_V1()) if not isinstance(node.GET_NODE_INFO_V1(), dict) else node.GET_NODE_INFO_V1() for name, node in nodes.items()}
    assert {name: info.get("search_aliases") for name, info in told.items()} == {name: WORDS[name] if known else None for name in nodes}


@pytest.mark.parametrize("file", sorted((ROOT / "nodes").glob("*.py")), ids=lambda file: file.stem)
def test_schemas_are_made_in_one_place(file: Path):
    assert file.name == "search_words.py" or "io.Schema(" not in file.read_text("utf-8"), "use schema() of search_words.py"
