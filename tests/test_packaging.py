"""The published pack: what is in its archive, what the registry's checks say about it, and what it does to an environment."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tomlkit
from pathspec import PathSpec

from stepwise_grpo.tools import pack
from stepwise_grpo.tools.environment import name_of, python_in, requirement_lines
from stepwise_grpo.tools.packages import site_packages

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = pack.archive_files(ROOT)
REQUIREMENTS = requirement_lines((ROOT / "requirements.txt").read_text("utf-8"))
# Literal text that scanners of custom nodes report, wherever it stands.
FORBIDDEN = (".eval(", "compile(", "import_module", "exec(", "subprocess", "pickle", "os.system", "__import__", "Popen")
HEADLESS = list(tomlkit.parse((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["headless"])
HEAVY = {"accelerate", "diffusers", "matplotlib", "peft", "sklearn"}

# An environment of early 2025: names, versions and what binds them to each other. Installing the pack may change none.
OLDER = {
    "aiohttp": ("3.11.14", []),
    "einops": ("0.8.1", []),
    "filelock": ("3.18.0", []),
    "fsspec": ("2025.3.0", []),
    "huggingface-hub": ("0.30.1", ["filelock", "fsspec>=2023.5.0", "packaging>=20.9", "pyyaml>=5.1", "requests", "tqdm>=4.42.1"]),
    "numpy": ("1.26.4", []),
    "packaging": ("24.2", []),
    "pillow": ("10.4.0", []),
    "psutil": ("7.0.0", []),
    "pyyaml": ("6.0.2", []),
    "regex": ("2024.11.6", []),
    "requests": ("2.32.3", []),
    "safetensors": ("0.5.3", []),
    "scipy": ("1.12.0", ["numpy>=1.22.4,<1.29.0"]),
    "tokenizers": ("0.21.1", ["huggingface-hub>=0.16.4,<1.0"]),
    "torch": ("2.6.0", ["filelock"]),
    "torchvision": ("0.21.0", ["numpy", "torch==2.6.0", "pillow"]),
    "tqdm": ("4.67.1", []),
    "transformers": ("4.50.3", ["huggingface-hub>=0.26.0,<1.0", "tokenizers>=0.21,<0.22", "safetensors>=0.4.3", "numpy>=1.17", "filelock"]),
    "typing-extensions": ("4.13.0", []),
}


def today() -> dict[str, tuple[str, list[str]]]:
    """The packages beside ComfyUI's pins, as installed here, without the ones the pack brings."""
    ours = {*map(name_of, REQUIREMENTS), "accelerate"}  # accelerate comes with peft
    there = {name_of(found.metadata["Name"]): (found.version, found.requires or []) for found in metadata.distributions()}
    return {name: package for name, package in there.items() if name not in ours}


@pytest.mark.parametrize("environment", ["today", "older"])
def test_installing_the_pack_changes_no_installed_package(environment, tmp_path):
    there = today() if environment == "today" else OLDER
    report = dry_run(REQUIREMENTS, there, tmp_path)
    added = {name_of(entry["metadata"]["name"]): entry["metadata"]["version"] for entry in report["install"]}
    assert {"peft", "matplotlib", "scikit-learn"} <= set(added)
    assert not {name: (there[name][0], version) for name, version in added.items() if name in there}


def test_the_extra_for_headless_training_is_an_extra_and_changes_nothing_beside_todays_comfyui(tmp_path):
    assert {name_of(line) for line in HEADLESS} == {"diffusers", "accelerate"} and "diffusers" not in {name_of(line) for line in REQUIREMENTS}
    there = {name: package for name, package in today().items() if name != "diffusers"}
    report = dry_run([*REQUIREMENTS, *HEADLESS], there, tmp_path)
    added = {name_of(entry["metadata"]["name"]) for entry in report["install"]}
    assert {"diffusers", "accelerate"} <= added and not added & set(there)


def dry_run(requirements: list[str], there: dict[str, tuple[str, list[str]]], folder: Path) -> dict:
    """pip's own plan for ``requirements`` in an environment that holds what ``there`` says."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    python = python_in(folder / "env")
    for name, (version, needs) in there.items():
        info = site_packages(python) / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs), ""]
        (info / "METADATA").write_text("\n".join(lines), encoding="utf-8")
    plan = folder / "plan.json"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--dry-run", "--only-binary", ":all:", "--report", str(plan)]
    done = subprocess.run([*command, *requirements], capture_output=True, encoding="utf-8", errors="replace")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(plan.read_text("utf-8"))


def test_pyproject_names_the_same_requirements():
    project = tomlkit.parse((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert list(project["dependencies"]) == REQUIREMENTS
    assert project["name"] == pack.NAME
    assert not {name_of(line) for line in REQUIREMENTS} & {"torch", "torchvision", "torchaudio", "numpy", "transformers"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """The archive's files in a folder of their own."""
    folder = tmp_path_factory.mktemp("archive é") / pack.NAME
    for name in SHIPPED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def tool(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command-line tool that lies beside this Python, with a home of its own."""
    command = shutil.which(name, path=str(Path(sys.executable).parent)) or name
    home = cwd.parent / "home"
    home.mkdir(exist_ok=True)
    environ = {**os.environ, "HOME": str(home), "USERPROFILE": str(home), "NO_COLOR": "1", "COLUMNS": "200", "PYTHONUTF8": "1"}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]])
    return subprocess.run([command, *arguments], cwd=cwd, env=environ, capture_output=True, encoding="utf-8", errors="replace")


def test_the_registrys_own_check_reports_nothing(archive):
    done = tool("comfy", "--skip-prompt", "--no-enable-telemetry", "node", "validate", cwd=archive)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "All validation checks passed" in said
    assert not re.search(r"warning|error", said, re.IGNORECASE), said


def test_a_scanner_users_run_says_clean(archive):
    done = tool("nodesafe", "scan", str(archive), "--format", "json", "--no-llm", cwd=archive)
    report = json.loads(done.stdout)
    found = sorted(f"{finding['file']}:{finding['line']} {finding['title']}" for finding in report["findings"])
    assert not found, "\n".join(found)
    assert report["verdict"]["label"] == "clean"


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.endswith(".py")])
def test_no_shipped_python_contains_what_scanners_flag(name):
    text = (ROOT / name).read_text("utf-8")
    assert [word for word in FORBIDDEN if word in text] == []


def test_the_archive_is_what_gits_rules_say():
    """Our reader of the two ignore files agrees with the library that the registry's tool uses."""
    lines = [line for name in (".gitignore", ".comfyignore") for line in (ROOT / name).read_text("utf-8").splitlines() if line and line[0] != "#"]
    rules = PathSpec.from_lines("gitignore", lines)
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in (".git", ".venv", ".comfyui")]
        found += [Path(folder, name).relative_to(ROOT).as_posix() for name in files]
    assert SHIPPED == sorted(name for name in found if not rules.match_file(name))


def test_the_archive_has_the_pack_and_none_of_its_workshop():
    assert {"__init__.py", "LICENSE", "pyproject.toml", "requirements.txt", "start_trainer.bat", "start_trainer.sh"} <= set(SHIPPED)
    assert {f"locales/{language}/{file}.json" for language in ("en", "zh", "ja", "de") for file in ("main", "nodeDefs")} <= set(SHIPPED)
    assert not [name for name in SHIPPED if name.startswith(("tests/", "tools/", "demo/recipe/", ".")) or name == "dev.py"]


def test_nothing_heavy_is_imported_when_comfyui_starts(comfyui_folder, pack_folder, tmp_path):
    """A real start of ComfyUI with this pack alone, the interpreter listing every import."""
    options = ["--cpu", "--quick-test-for-ci", "--disable-all-custom-nodes", "--whitelist-custom-nodes", pack_folder.name]
    options += ["--database-url", "sqlite:///:memory:", "--output-directory", str(tmp_path), "--temp-directory", str(tmp_path)]
    command = [sys.executable, "-X", "importtime", str(comfyui_folder / "main.py"), *options]
    done = subprocess.run(command, cwd=comfyui_folder, capture_output=True, encoding="utf-8", errors="replace")
    assert done.returncode == 0, done.stderr[-2000:]
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert any(name.endswith("stepwise-flow-grpo.nodes") or name.endswith(".nodes.rollout") for name in imported), done.stdout[-2000:]
    assert not {name.split(".")[0] for name in imported} & HEAVY
