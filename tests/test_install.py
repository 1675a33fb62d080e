"""Where the pack goes: a ComfyUI of one's own is understood and left as it is, and the pack's copy follows its source."""

import sys
from pathlib import Path

import pytest

from stepwise_grpo.tools import own_comfyui, pack
from stepwise_grpo.tools.errors import SetupError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name has a space and a letter outside ASCII."""
    path = tmp_path / "my files é"
    path.mkdir()
    return path


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# COMFYUI_PATH


@pytest.fixture
def own(folder: Path) -> Path:
    """Somebody's ComfyUI."""
    write(folder / "ComfyUI" / "main.py")
    write(folder / "ComfyUI" / "comfy" / "sd.py")
    return folder / "ComfyUI"


def test_comfyui_path_understands_quotes_and_the_portable_folder(own):
    assert own_comfyui.find(f' "{own}" ') == own.resolve()
    assert own_comfyui.find(str(own.parent)) == own.resolve()


def test_a_folder_that_is_no_comfyui_is_named(folder):
    with pytest.raises(SetupError, match=r"main\.py"):
        own_comfyui.find(str(folder))


@pytest.mark.parametrize(
    ("there", "windows"),
    [
        ("ComfyUI/.venv/bin/python", False),
        ("ComfyUI/venv/bin/python", False),
        ("venv/bin/python", False),
        ("ComfyUI/venv/Scripts/python.exe", True),
        ("python_embeded/python.exe", True),
    ],
)
def test_the_python_to_go_with_a_comfyui_is_found(own, there, windows):
    python = write(own.parent / there)
    assert own_comfyui.choose_python(own, {}, windows) == python


def test_comfyui_python_decides_and_the_running_python_is_the_last_choice(own):
    write(own / ".venv/bin/python")
    named = write(own / "conda" / "python")
    assert own_comfyui.choose_python(own, {"COMFYUI_PYTHON": f'"{named}"'}, False) == named
    (own / ".venv/bin/python").unlink()
    assert own_comfyui.choose_python(own, {}, False) == Path(sys.executable)
    with pytest.raises(SetupError, match="COMFYUI_PYTHON"):
        own_comfyui.choose_python(own, {"COMFYUI_PYTHON": str(own / "nothing")}, False)


def test_a_missing_package_is_named_with_its_command_and_not_installed():
    own_comfyui.check_packages(Path(sys.executable), ["peft>=0.15"])
    with pytest.raises(SetupError, match=r"lacks surely-not-there\.(.|\n)*-m pip install \"surely-not-there>=2\""):
        own_comfyui.check_packages(Path(sys.executable), ["peft>=0.15", "surely-not-there>=2"])


# the pack among ComfyUI's custom nodes


@pytest.fixture
def source(folder: Path) -> Path:
    root = folder / "clone"
    write(root / ".gitignore", ".venv/\n__pycache__/\n")
    write(root / ".comfyignore", "# comment\ntests/\ndemo/recipe/\n")
    for name in ("__init__.py", "nodes/a.py", "demo/model.py", "demo/recipe/x.py", "tests/t.py", ".venv/x.py", ".git/HEAD", "nodes/__pycache__/a.pyc"):
        write(root / name, name)
    write(root / "pyproject.toml", f'[project]\nname = "{pack.NAME}"\n')
    return root


def installed(target: Path) -> set[str]:
    return {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()} - {pack.MANIFEST}


def test_the_pack_is_copied_without_what_is_left_out(source, own):
    target = pack.install(source, own)
    assert target == own / "custom_nodes" / pack.NAME
    assert installed(target) == {"__init__.py", "nodes/a.py", "demo/model.py", "pyproject.toml", ".gitignore", ".comfyignore"}
    assert not any(path.is_symlink() for path in target.rglob("*"))


def test_the_copy_follows_the_source_and_writes_only_what_changed(source, own):
    target = pack.install(source, own)
    write(target / "nodes" / "__pycache__" / "a.pyc", "made by Python")
    write(source / "nodes" / "a.py", "changed")
    (source / "demo" / "model.py").unlink()
    before = (target / "__init__.py").stat().st_ino
    pack.install(source, own)
    assert (target / "nodes/a.py").read_text() == "changed"
    assert not (target / "demo/model.py").exists()
    assert (target / "__init__.py").stat().st_ino == before
    assert (target / "nodes/__pycache__/a.pyc").exists()


def test_an_interrupted_copy_is_finished(source, own, monkeypatch):
    def cut(source_file, target_file):
        if target_file.name == "model.py":
            raise KeyboardInterrupt
        copy(source_file, target_file)

    copy = pack._copy
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pack, "_copy", cut)
        pack.install(source, own)
    assert "nodes/a.py" in installed(pack.install(source, own))


def test_a_clone_under_custom_nodes_is_used_in_place(source, own):
    place = own / "custom_nodes" / "my clone"
    place.parent.mkdir()
    source.rename(place)
    assert pack.install(place, own) == place
    assert list(place.parent.iterdir()) == [place]


@pytest.mark.parametrize("name", [pack.NAME, "Another Name"])
def test_a_copy_by_someone_else_is_not_overwritten(source, own, name):
    theirs = write(own / "custom_nodes" / name / "pyproject.toml", f'[project]\nname = "{pack.NAME}"\n')
    with pytest.raises(SetupError, match="already holds this pack"):
        pack.install(source, own)
    assert theirs.exists()
    assert [path.name for path in (own / "custom_nodes").iterdir()] == [name]


def test_an_ignore_pattern_beyond_the_simple_ones_is_refused(folder):
    with pytest.raises(ValueError, match=r"\*\*"):
        pack.ignore_patterns(write(folder / ".comfyignore", "a/**/b\n"))
