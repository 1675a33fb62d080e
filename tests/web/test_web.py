"""The page's JavaScript: its types against those of ComfyUI's page, its unit tests, and the promises of its layout."""

import re
import sys
from pathlib import Path

import pytest

from stepwise_grpo.tools import node

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / node.FOLDER
MODULES = sorted((ROOT / "web" / "js").rglob("*.js"))


def said(command: str, *arguments: str) -> tuple[int, str]:
    done = node.run(Path(sys.executable), command, arguments, FOLDER)
    return done.returncode, done.stdout + done.stderr


def test_types_fit_comfyuis_page():
    code, output = said("node", "node_modules/typescript/bin/tsc", "-p", ".")
    assert code == 0, output


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.test.mjs")), ids=lambda file: file.stem)
def test_unit_tests_in_node(file):
    code, output = said("node", "--test", file.name)
    assert code == 0 and re.search(r"\bfail 0\b", output) and not re.search(r"\btests 0\b", output), output


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_one_module_knows_the_page_and_none_is_long(file):
    text = file.read_text("utf-8")
    if file.name != "comfy.js":
        assert "scripts/" not in text and "window.app" not in text
    assert len(text.splitlines()) <= 250
    assert not [word for word in ("innerHTML", "insertAdjacentHTML", ".prototype.", "console.", "http://", "https://") if word in text.replace("http://www.w3.org/2000/svg", "")]
