"""What the trainer's tests share."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stepwise_grpo.tests.bench import Bench
from stepwise_grpo.training.comfyui import prepare


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
    """training.backends.comfy with ``models`` as its diffusion models, set the way the trainer sets it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        prepare({"root": str(comfyui_folder), "argv": ["--cpu"]}, None)
        from stepwise_grpo.training.backends import comfy as backend
        from stepwise_grpo.training.backends import loading

        patch.setattr(loading.folder_paths, "folder_names_and_paths", dict(loading.folder_paths.folder_names_and_paths))
        loading.set_model_folders({"diffusion_models": [str(models)]})
        yield backend


@pytest.fixture
def bench(backend: Any, models: Path) -> Bench:
    """A tiny SD3 that ComfyUI's loader takes unaided."""
    return Bench("sd3", backend, models)
