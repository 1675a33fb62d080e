"""What the trainer's tests share: one thread, and the bench of an architecture."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stepwise_grpo.tests.architectures import ARCHITECTURES, exists
from stepwise_grpo.tests.bench import Bench
from stepwise_grpo.training.comfyui import prepare

Figure = Callable[[str, float], float]


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from a second thread, and lose much where other processes want the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def backend(comfyui_folder: Path, checkpoints: Path) -> Iterator[Any]:
    """The trainer's ComfyUI backend in this process, on the CPU, with the tiny checkpoints as its diffusion models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        prepare({"root": str(comfyui_folder), "argv": ["--cpu"]}, None)
        from stepwise_grpo.training.backends import comfy as backend
        from stepwise_grpo.training.backends import loading

        patch.setitem(loading.folder_paths.folder_names_and_paths, "diffusion_models", ([str(checkpoints)], {".safetensors"}))
        yield backend


@pytest.fixture
def bench(request: pytest.FixtureRequest, backend: Any, checkpoints: Path) -> Bench:
    if not exists(ARCHITECTURES[request.param]):
        pytest.skip(f"this ComfyUI has no {request.param}")
    return Bench(request.param, backend, checkpoints)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    def record(name: str, value: float) -> float:
        request.node.user_properties.append((name, f"{value:.1e}"))
        print(f"{name}: {value:.1e}")
        return value

    return record
