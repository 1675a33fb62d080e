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
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models é")


@pytest.fixture(scope="module")
def backend(comfyui_folder: Path, models: Path) -> Iterator[Any]:
    """The trainer's ComfyUI backend in this process, on the CPU, with ``models`` as its diffusion models, set the way the trainer sets it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        prepare({"root": str(comfyui_folder), "argv": ["--cpu"]}, None)
        from stepwise_grpo.training.backends import comfy as backend
        from stepwise_grpo.training.backends import loading

        patch.setattr(loading.folder_paths, "folder_names_and_paths", dict(loading.folder_paths.folder_names_and_paths))
        loading.set_model_folders({"diffusion_models": [str(models)]})
        yield backend


@pytest.fixture
def bench(request: pytest.FixtureRequest, backend: Any, models: Path) -> Bench:
    """The architecture a test is parametrised with; without one a tiny SD3, which ComfyUI's loader takes unaided."""
    name = getattr(request, "param", "sd3")
    if not exists(ARCHITECTURES[name]):
        pytest.skip(f"this ComfyUI has no {name}")
    return Bench(name, backend, models)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    def record(name: str, value: float) -> float:
        request.node.user_properties.append((name, f"{value:.1e}"))
        print(f"{name}: {value:.1e}")
        return value

    return record
