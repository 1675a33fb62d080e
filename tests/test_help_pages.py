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


@pytest.mark.parametrize("page", sorted(FOLDER.rglob("*.md")), ids=lambda page: page.relative_to(FOLDER).as_posix())
def test_a_page_in_every_language_shows_its_node(page):
    """ComfyUI takes pictures from below docs/ for all languages."""
    name = page.stem if page.stem in NODES else page.parent.name
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text("utf-8"))
    assert shown[:1] == [f"images/{name}.jpg"]
    assert 2_000 < (FOLDER / shown[0]).stat().st_size <= 40 * 1024


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


TRANSLATED = sorted(path.relative_to(FOLDER) for path in FOLDER.glob("*/*.md"))
ARTISTS_FIRST = {f"StepwiseGRPO_{name}" for name in ("LiveLoRA", "StepwiseSDESampler", "TweediePreviewReward", "CreditVisualizer", "GRPOLoRATrainer")}
STOCK = {
    "de": {"KSampler", "Load LoRA", "VAE Decode", "Preview Image", "Save Image"},
    "ja": {"Kサンプラー", "VAEデコード", "画像プレビュー", "画像を保存"},
    "zh": {"K采样器", "VAE解码", "预览图像", "保存图像"},
}


def test_the_nodes_an_artist_meets_first_have_pages_in_all_languages():
    """ComfyUI's page looks for <node>/<language>.md and then for <node>.md, which is the English page."""
    assert {(path.parent.name, path.stem) for path in TRANSLATED} == {(name, language) for name in ARTISTS_FIRST for language in STOCK}


@pytest.mark.parametrize("page", TRANSLATED, ids=str)
def test_a_translated_page_uses_the_words_the_node_shows(page):
    language, text = page.stem, (FOLDER / page).read_text("utf-8")
    nodes = json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text("utf-8"))
    own = nodes[page.parent.name]
    title = lambda node: node["display_name"].split(" (")[0]
    assert text.startswith(f"# {title(own)}\n") and text.count("\n## ") == text_of(page.parent.name).count("\n## ") - ("## Memory" in text_of(page.parent.name))
    missing = [key for key, part in own["inputs"].items() if f"**{part['name']}** (`{key}`)" not in text]
    assert missing == []
    names = {part["name"] for node in nodes.values() for part in node["inputs"].values()}
    assert set(re.findall(r"\*\*([^*\n]+)\*\*", text)) <= names
    assert set(re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", text)) <= {title(node) for node in nodes.values()} | STOCK[language] | {"increment"}
    assert set(re.findall(r"`([^`]+)`", text)) - set(own["inputs"]) <= set(re.findall(r"`([^`]+)`", text_of(page.parent.name)))
