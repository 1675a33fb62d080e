"""The texts of nodes and page in four languages: English is what the schemas say, and the others say the same in their words."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "locales"
OTHERS = ("de", "ja", "zh")
FILES = {"main.json", "nodeDefs.json"}
ENGLISH_WORDS = re.compile(r"\b(the|of|and|with|from|is|are|which|this|that|for|to|one|all)\b", re.IGNORECASE)
HAN, KANA = re.compile(r"[\u4e00-\u9fff]"), re.compile(r"[\u3040-\u30ff]")
# Names that stay as they are: symbols of the field, and words a language has taken over as they are.
SAME_NAME = {
    "de": {"cfg", "eta", "alpha", "beta", "ema", "clip", "vae", "prompts", "iteration", "seed", "sigmas", "guidance", "shift", "updates", "version"},
    "ja": {"cfg", "eta", "alpha", "beta", "ema", "vae", "clip"},
    "zh": {"cfg", "eta", "alpha", "beta", "ema", "vae", "clip", "sigmas", "latent"},
}
TYPES = {"MODEL", "CLIP", "VAE", "LATENT", "SAMPLER", "IMAGE"}  # in a language ComfyUI does not have itself


def read(language: str, file: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), f"{language}/{file} has a key twice: {[key for key, _ in pairs]}"
        return dict(pairs)

    return json.loads((FOLDER / language / file).read_text("utf-8"), object_pairs_hook=once)


def leaves(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path, text) of every text of a file."""
    if not isinstance(data, dict):
        yield path, data
        return
    for key, value in data.items():
        yield from leaves(value, (*path, key))


NODES, MAIN = read("en", "nodeDefs.json"), read("en", "main.json")
ENGLISH = dict(leaves(NODES))


def test_english_is_what_the_schemas_say(comfyui_folder):
    command = [sys.executable, str(ROOT / "tools" / "run.py"), "locales", "--check"]
    environ = {**os.environ, "STEPWISE_COMFYUI": str(comfyui_folder), "PYTHONUTF8": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, encoding="utf-8", errors="replace")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"


def test_the_languages_and_files_are_these():
    assert {path.name for path in FOLDER.iterdir()} == {"en", *OTHERS}
    assert all({path.name for path in (FOLDER / language).iterdir()} == FILES for language in ("en", *OTHERS))


def test_the_english_file_has_the_shape_the_page_looks_up():
    for name, node in NODES.items():
        assert set(node) == {"display_name", "description", "inputs", "outputs"}, name
        assert list(node["outputs"]) == [str(place) for place in range(len(node["outputs"]))], name
        assert all(set(part) == {"name", "tooltip"} for part in [*node["inputs"].values(), *node["outputs"].values()]), name
        assert "." not in name and not [key for key in node["inputs"] if "." in key], f"{name}: the page writes '.' of a key as '_'"


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_has_the_same_keys(language):
    assert set(dict(leaves(read(language, "nodeDefs.json")))) == set(ENGLISH)
    assert set(dict(leaves(read(language, "main.json")))) == set(dict(leaves(MAIN)))


@pytest.mark.parametrize("language", ["en", *OTHERS])
def test_no_text_is_empty_or_has_letters_that_the_page_reads_as_a_command(language):
    for path, text in leaves(read(language, "nodeDefs.json")):
        assert isinstance(text, str) and text == text.strip() != "", path
        assert not set(text) & set("{}@|"), (path, text)
    assert all(isinstance(text, str) and text.strip() for _, text in leaves(read(language, "main.json")))


@pytest.mark.parametrize("language", OTHERS)
def test_nothing_is_left_in_english(language):
    for path, text in leaves(read(language, "nodeDefs.json")):
        assert path[-1] != "display_name" or "(Stepwise GRPO" in text, path
        if path[-1] == "name":
            assert text != ENGLISH[path] or text.lower() in SAME_NAME[language] or text in TYPES, path
        else:
            check_language(language, path, text)
    for path, text in leaves(read(language, "main.json")):
        assert text != dict(leaves(MAIN))[path] or not ENGLISH_WORDS.search(text), path


def check_language(language: str, path: tuple[str, ...], text: str) -> None:
    assert not ENGLISH_WORDS.search(text), (path, text)
    assert bool(HAN.search(text) or KANA.search(text)) == (language != "de"), (path, text)
    assert language != "zh" or not KANA.search(text), (path, text)
    assert language != "ja" or path[-1] == "display_name" or KANA.search(text), (path, text)
    assert text != ENGLISH[path], path


@pytest.mark.parametrize("language", OTHERS)
def test_numbers_and_settings_of_the_english_text_are_in_the_translation(language):
    facts = re.compile(r"\d+(?:\.\d+)?|\b[a-z]+(?:_[a-z0-9]+)+\b|'[a-z]+'|\b(?:SD|Flow-)\w+")
    for path, text in leaves(read(language, "nodeDefs.json")):
        if path[-1] != "name":
            missing = [fact for fact in facts.findall(ENGLISH[path]) if fact.strip("'") not in text]
            assert missing == [], path


@pytest.mark.parametrize("language", OTHERS)
def test_an_input_can_be_recognised_by_the_name_messages_use(language):
    for name, node in read(language, "nodeDefs.json").items():
        assert [key for key, part in node["inputs"].items() if key.lower() not in f"{part['name']} {part['tooltip']}".lower()] == [], name


@pytest.mark.parametrize("language", OTHERS)
def test_one_english_text_has_one_translation(language):
    """The same widget of two nodes is called the same; the same tooltip says the same."""
    said: dict[tuple[str, str], set[str]] = {}
    for path, text in leaves(read(language, "nodeDefs.json")):
        if path[-1] == "tooltip":
            said.setdefault((path[-2], ENGLISH[path]), set()).add(text)
    assert not {english: texts for english, texts in said.items() if len(texts) > 1}


@pytest.mark.parametrize("language", OTHERS)
def test_placeholders_of_the_pages_texts_are_the_same(language):
    asked = lambda data: {path: sorted(re.findall(r"\{(\w+)\}", text)) for path, text in leaves(data)}
    assert asked(read(language, "main.json")) == asked(MAIN)
