"""What the tests share: the pack under its one name, a real ComfyUI, a real trainer, a real browser."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def bind_pack() -> None:
    """``import stepwise_grpo...`` from here on. Loaded by path: the pack's folders must not be importable as top-level names."""
    spec = importlib.util.spec_from_file_location("_bind", ROOT / "training" / "bind.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.bind()


bind_pack()

from stepwise_grpo.tools import browser, pack  # noqa: E402
from stepwise_grpo.tools.server import ComfyServer, Trainer  # noqa: E402

MARKED_BY_FIXTURE = {"browser_path": "browser", "comfy_server": "server"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is a browser or server test when it asks for one; nobody has to remember the mark."""
    for item in items:
        for fixture, mark in MARKED_BY_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)


@pytest.fixture(scope="session")
def comfyui_folder() -> Path:
    """The ComfyUI the tests use: dev.py's, or the one COMFYUI_PATH named."""
    folder = Path(os.environ.get("STEPWISE_COMFYUI") or ROOT / ".comfyui")
    if not (folder / "main.py").is_file():
        pytest.fail(f"there is no ComfyUI in {folder}; run the tests with: python dev.py test")
    return folder


@pytest.fixture(scope="session")
def pack_folder(comfyui_folder: Path) -> Path:
    """The folder ComfyUI loads the pack from, brought up to date."""
    return pack.install(ROOT, comfyui_folder)


@pytest.fixture(scope="session")
def comfy_server(comfyui_folder: Path, pack_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A real ComfyUI with the pack, on loopback, with an output folder of its own whose name is not plain ASCII."""
    folder = tmp_path_factory.mktemp("a real comfyui é")
    with ComfyServer(comfyui_folder, folder / "output é", folder / "comfyui.log") as server:
        if not any(name.startswith("StepwiseGRPO_") for name in server.object_info()):
            pytest.fail(f"ComfyUI did not load the pack. Its log:\n{server.log.read_text('utf-8', errors='replace')[-4000:]}")
        yield server


@pytest.fixture(scope="session")
def trainer(pack_folder: Path, comfy_server: ComfyServer) -> Iterator[Trainer]:
    """A real trainer process on that server's output folder."""
    with Trainer(pack_folder, comfy_server.output, comfy_server.log.with_name("trainer.log")) as process:
        yield process


@pytest.fixture(scope="session")
def browser_path() -> str:
    """A browser on this machine. Without one its tests fail: leaving them out is a decision, made with --no-browser."""
    path = browser.find()
    if path is None:
        pytest.fail(browser.REMEDY)
    return path
