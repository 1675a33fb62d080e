"""Child processes, the real server's API, and the launcher that chooses the trainer's Python."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stepwise_grpo.tools import server
from stepwise_grpo.tools.process import Child
from stepwise_grpo.training import comfyui

ROOT = Path(__file__).resolve().parent.parent
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals and sh")
STUBBORN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
PARENT = f"import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]).pid, flush=True); time.sleep(60)"


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def test_stopping_a_child_ends_what_it_started(tmp_path):
    child = Child([sys.executable, "-c", PARENT], tmp_path / "logs é" / "child.log")
    assert wait_until(child.tail)
    grandchild = int(child.tail())
    child.stop(grace=3)
    assert child.exit_code is not None
    assert wait_until(lambda: not is_alive(grandchild))


@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_a_command_ends_its_children(tmp_path, number):
    script = (
        f"import sys, time; sys.path.insert(0, {str(ROOT / 'training')!r}); from bind import bind; bind()\n"
        "from pathlib import Path; from stepwise_grpo.tools.process import Child, interrupt_on_signals\n"
        f"interrupt_on_signals(); child = Child([sys.executable, '-c', 'import time; time.sleep(60)'], Path({str(tmp_path / 'log')!r}))\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    command = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    child = int(command.stdout.readline())
    assert is_alive(child)
    command.send_signal(number)
    command.wait(15)
    assert not is_alive(child)


# the server


def test_a_graph_is_queued_and_its_picture_comes_back(comfy_server):
    graph = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 8, "batch_size": 1, "color": 255}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    (image,) = comfy_server.run(graph)["2"]["images"]
    assert comfy_server.picture(image).startswith(b"\x89PNG")


def test_a_refused_graph_names_node_and_input(comfy_server):
    graph = {"7": {"class_type": "PreviewImage", "inputs": {}}}
    with pytest.raises(server.ComfyError, match=r"node 7 \(PreviewImage\).*images"):
        comfy_server.queue(graph)


def test_a_failing_node_is_named(comfy_server):
    graph = {
        "1": {"class_type": "EmptyLatentImage", "inputs": {"width": 16, "height": 16, "batch_size": 1}},
        "2": {"class_type": "LatentFromBatch", "inputs": {"samples": ["1", 0], "batch_index": 0, "length": 1}},
        "3": {"class_type": "SaveLatent", "inputs": {"samples": ["2", 0], "filename_prefix": "../../outside"}},
    }
    with pytest.raises(server.ComfyError, match="^SaveLatent: "):
        comfy_server.run(graph)


def test_a_server_that_cannot_start_says_why(tmp_path):
    broken = tmp_path / "ComfyUI"
    (broken / "comfy").mkdir(parents=True)
    (broken / "main.py").write_text("import a_module_nobody_has\n", encoding="utf-8")
    with pytest.raises(server.ComfyError, match="lacks the module 'a_module_nobody_has'"):
        server.ComfyServer(broken, tmp_path / "out", tmp_path / "log", options=["--cpu"]).start(20)


def test_the_server_is_on_loopback_and_writes_where_it_is_told(comfy_server):
    assert comfy_server.url.startswith("http://127.0.0.1:")
    assert "--output-directory" in comfy_server.get("/system_stats")["system"]["argv"]


# the launcher


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A ComfyUI in a folder with a space and a letter outside ASCII, the launcher among its custom nodes."""
    folder = tmp_path / "my é folder" / "ComfyUI" / "custom_nodes" / "stepwise-flow-grpo"
    folder.mkdir(parents=True)
    shutil.copy2(ROOT / "start_trainer.sh", folder)
    return folder.parent.parent


def fake_python(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\nfor a in "$0" "$@"; do echo "[$a]"; done\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def launch(place: Path, *arguments: str, path: Path | None = None) -> list[str]:
    """What the chosen Python was called as, and with which arguments."""
    script = place / "custom_nodes" / "stepwise-flow-grpo" / "start_trainer.sh"
    environ = {**os.environ, "PATH": f"{path or place}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", str(script), *arguments], cwd="/", env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line[1:-1] for line in done.stdout.splitlines() if line.startswith("[")]


@POSIX
@pytest.mark.parametrize("form", ["default", "two words", "equals"])
def test_the_launcher_takes_the_python_comfyui_recorded(place, form, monkeypatch):
    fake_python(place / ".venv" / "bin" / "python")
    recorded = fake_python(place / 'py "é" x' / "python")
    output = place / "output" if form == "default" else place / "other output é"
    monkeypatch.setattr(comfyui.sys, "executable", str(recorded))
    comfyui.write_place(output, place, [], {}, {})
    arguments = {"default": [], "two words": ["--output", str(output)], "equals": [f"--output={output}"]}[form]
    called, script, *rest = launch(place, *arguments)
    assert Path(called) == recorded
    assert Path(script) == place / "custom_nodes" / "stepwise-flow-grpo" / "training"
    assert rest == arguments


@POSIX
@pytest.mark.parametrize("names", [["python_embeded", ".venv", "venv"], [".venv", "venv"], ["venv"]])
def test_the_launcher_looks_beside_comfyui_when_the_recorded_python_is_gone(place, names, monkeypatch):
    monkeypatch.setattr(comfyui.sys, "executable", str(place / "gone"))
    comfyui.write_place(place / "output", place, [], {}, {})
    pythons = [fake_python(place / name / "bin" / "python") for name in names]
    assert Path(launch(place)[0]).resolve() == pythons[0]


@POSIX
def test_the_launcher_falls_back_to_path(place, tmp_path):
    python = fake_python(tmp_path / "bin" / "python")
    assert Path(launch(place, path=python.parent)[0]) == python


@POSIX
def test_both_launchers_know_the_same_places_and_windows_has_its_line_ends():
    batch = (ROOT / "start_trainer.bat").read_bytes()
    assert batch.count(b"\n") == batch.count(b"\r\n")
    text = batch.decode("ascii")
    assert r"in (python_embeded\python.exe .venv\Scripts\python.exe venv\Scripts\python.exe)" in text
    assert r"%output%\stepwise_grpo\comfyui.json" in text
