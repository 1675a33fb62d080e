"""The help pages: one for each node, built alike, and naming everything the node has. What the nodes have stands in locales/en/nodeDefs.json."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "web" / "docs"
NODES = json.loads((ROOT / "locales" / "en" / "nodeDefs.json").read_text("utf-8"))
IN_ORDER = ("## Wiring", "## Widgets", "## What can go wrong")


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", NODES)
def test_a_page_says_what_the_node_does_how_to_wire_it_and_what_can_go_wrong(name):
    lines = text_of(name).splitlines()
    assert lines[0] == f"# {NODES[name]['display_name'].split(' (')[0].removesuffix(' to fine-tune')}"
    found = [line for line in lines if line in IN_ORDER]
    assert found == [heading for heading in IN_ORDER if heading in found]
    assert {"## Wiring", "## What can go wrong"} <= set(found)
    assert len("\n".join(lines[1:]).split("\n## ")[0].strip()) > 50, "what the node does, before anything else"


@pytest.mark.parametrize("name", NODES)
def test_a_page_names_every_input_and_no_other_widget(name):
    text = text_of(name)
    bold = set(re.findall(r"\*\*([a-z_]+)\*\*", text))
    assert set(NODES[name]["inputs"]) <= bold
    known = {key for node in NODES.values() for key in node["inputs"]} | {output["name"] for node in NODES.values() for output in node["outputs"].values()}
    assert bold - known - {"series"} == set()


@pytest.mark.parametrize("name", NODES)
def test_nodes_are_called_by_their_names(name):
    """Every name in italics is a node of this pack or one the page means in ComfyUI."""
    ours = {node["display_name"].split(" (")[0].removesuffix(" to fine-tune") for node in NODES.values()}
    stock = {"Load Diffusion Model", "Load Checkpoint", "Load LoRA", "KSampler", "CLIP Text Encode", "VAE Decode", "Empty SD3 Latent Image", "Preview Image", "Save Image"}
    stock |= {"SamplerCustom", "SamplerCustomAdvanced", "BasicScheduler", "Flux Guidance"}
    words = {"increment", "fixed", "ours", "any other model", "start_from"}
    said = set(re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", text_of(name).split("<!--")[0]))
    assert said - ours - stock - words == set()
