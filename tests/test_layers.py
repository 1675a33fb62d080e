"""The promises of the layout: who may import whom, and how long things may be."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACK = "stepwise_grpo"
COMFY = {"comfy", "comfy_api", "comfy_extras", "comfy_execution", "execution", "folder_paths", "latent_preview", "node_helpers", "nodes", "server"}
KNOW_COMFY = {f"nodes/{name}.py" for name in ("convert", "base_model", "demo_model", "live_lora")}
# Verbs and rewards the graph shares with the trainer, and the values and files that pass between the two.
SHARED_WITH_NODES = ("core", "rollout", "preview", "rewards", "config", "job", "control", "policy", "trajectory", "experience", "conditioning", "prompts", "base", "comfyui", "lora", "defaults", "looks")
FOLDERS = ("training", "nodes", "demo", "tools", "tests")
FILES = sorted([*ROOT.glob("*.py"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))])


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imports(file: Path) -> Iterator[str]:
    """Absolute dotted names of everything a file imports, also inside functions; relative ones begin with ``stepwise_grpo``."""
    package = [PACK, *file.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield from (".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names)


def breaches(pattern: str, allowed: object) -> list[str]:
    """``file: import`` for the files of ``pattern`` that import what ``allowed(name)`` refuses."""
    return [f"{name_of(file)}: {name}" for file in sorted(ROOT.glob(pattern)) for name in imports(file) if not allowed(name)]


def is_from(name: str, *modules: str) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def is_standard(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


def test_core_needs_torch_and_nothing_else():
    assert not breaches("training/core/**/*.py", lambda name: is_standard(name) or is_from(name, "torch", f"{PACK}.training.core"))


@pytest.mark.parametrize("module", ["config", "job", "control", "defaults", "looks"])
def test_settings_and_run_folder_need_the_standard_library_only(module):
    allowed = (f"{PACK}.training.config", f"{PACK}.training.job")
    assert not breaches(f"training/{module}.py", lambda name: is_standard(name) or is_from(name, *allowed))


def test_training_does_not_know_the_graph():
    assert not breaches("training/**/*.py", lambda name: not is_from(name, f"{PACK}.nodes", "nodes"))


def test_only_the_backends_know_comfyui():
    found = breaches("training/**/*.py", lambda name: name.split(".")[0] not in COMFY)
    assert all(line.startswith("training/backends/") for line in found)


def test_only_one_backend_knows_diffusers_and_it_does_not_know_comfyui():
    """And each is imported only when it is asked for: ComfyUI's own environment has neither."""
    others = breaches("training/**/*.py", lambda name: not is_from(name, "diffusers", "accelerate"))
    assert {line.split(":")[0] for line in others} <= {"training/headless.py", "training/backends/diffusers/loading.py"}
    backend = [file for file in (ROOT / "training" / "backends" / "diffusers").glob("*.py")]
    assert len(backend) > 3
    known = (f"{PACK}.training.backends.diffusers", f"{PACK}.training.backends.trainable", *(f"{PACK}.training.{part}" for part in ("lora", "conditioning", "config", "base", "policy", "headless_settings", "capacity", "experience")))
    assert not breaches("training/backends/diffusers/*.py", lambda name: name.split(".")[0] not in COMFY and (not is_from(name, PACK) or is_from(name, *known)))
    at_the_top = [node for file in [*backend, ROOT / "training" / "headless.py"] for node in ast.parse(file.read_text("utf-8")).body]
    named = [alias.name for node in at_the_top if isinstance(node, ast.Import) for alias in node.names] + [node.module for node in at_the_top if isinstance(node, ast.ImportFrom)]
    assert not [name for name in named if name and name.split(".")[0] in ("diffusers", "accelerate", "transformers") and not name.startswith("backends")]


def test_only_the_routes_know_the_servers_library():
    found = [name_of(file) for file in FILES if not name_of(file).startswith("tests/") and any(is_from(name, "aiohttp") for name in imports(file))]
    assert found and all(name.startswith("nodes/routes/") for name in found)


def test_few_nodes_know_comfyuis_inside():
    found = breaches("nodes/**/*.py", lambda name: not is_from(name, "comfy"))
    assert {line.split(":")[0] for line in found} <= KNOW_COMFY


def test_nodes_use_the_agreed_parts_of_training():
    allowed = [f"{PACK}.training.{part}" for part in SHARED_WITH_NODES]
    found = breaches("nodes/**/*.py", lambda name: not is_from(name, f"{PACK}.training") or is_from(name, *allowed))
    backend = f": {PACK}.training.backends."  # the sampler's velocity is the trainer's: one implementation
    assert not [line for line in found if not (backend in line and line.split(":")[0] in KNOW_COMFY)]


def test_one_file_of_the_demo_knows_comfyui():
    found = breaches("demo/*.py", lambda name: name.split(".")[0] not in COMFY)
    assert {line.split(":")[0] for line in found} <= {"demo/comfy_model.py"}


def test_loading_the_pack_imports_nothing_before_comfyui_asks():
    assert not [node for node in ast.parse((ROOT / "__init__.py").read_text("utf-8")).body if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_functions_and_files_stay_short(file):
    text = file.read_text("utf-8")
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    long = [f"{node.name}: {node.end_lineno - node.lineno + 1} lines" for node in functions if node.end_lineno - node.lineno >= 40]
    assert not long
    if not name_of(file).startswith("tests/"):
        assert len(text.splitlines()) <= (150 if name_of(file) == "training/run.py" else 250)
