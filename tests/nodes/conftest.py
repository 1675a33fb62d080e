"""What the nodes' tests share: a ComfyUI server of their own, with the demo's model file among its diffusion models and no trainer."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.nodes.graphs import FLOW, wait_until_alive
from stepwise_grpo.tools.server import ComfyServer, Trainer
from stepwise_grpo.training.comfyui import prepare


@pytest.fixture(scope="package")
def server(comfyui_folder: Path, pack_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    folder = tmp_path_factory.mktemp("nodes é")
    models = folder / "models"
    models.mkdir()
    shutil.copyfile(FLOW, models / "demo_flow.safetensors")
    shutil.copyfile(FLOW, models / "other_flow.safetensors")
    spoilt_models(models)
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    shutil.copyfile(FLOW, checkpoints / "whole.safetensors")
    paths = folder / "paths.yaml"
    paths.write_text(json.dumps({"tests": {"diffusion_models": str(models), "checkpoints": str(checkpoints)}}), "utf-8")  # JSON is YAML
    options = ("--extra-model-paths-config", str(paths))
    with ComfyServer(comfyui_folder, folder / "output é", folder / "comfyui.log", options=options) as server:
        yield server


def spoilt_models(folder: Path) -> None:
    """torn: a weight is missing; gguf: another format under a harmless name; notes: no model."""
    tensors = safetensors.torch.load_file(FLOW)
    (missing,) = [name for name in tensors if name.endswith("joint_blocks.0.x_block.attn.proj.weight")]
    del tensors[missing]
    safetensors.torch.save_file(tensors, folder / "torn.safetensors")
    (folder / "gguf.safetensors").write_bytes(b"GGUF" + bytes(2**10))
    safetensors.torch.save_file({"a": torch.zeros(2)}, folder / "notes.safetensors")


@pytest.fixture(scope="module")
def busy_trainer(server: ComfyServer, pack_folder: Path) -> Iterator[Trainer]:
    """A trainer on that server's output, for the module that asks for it; the other modules have none."""
    with Trainer(pack_folder, server.output, server.log.with_name("trainer.log")) as process:
        wait_until_alive(process, server.output)
        yield process


@pytest.fixture(scope="package")
def comfy(comfyui_folder: Path) -> Iterator[Any]:
    """ComfyUI in this process, on the CPU, so that a node's parts can be called directly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        prepare({"root": str(comfyui_folder), "argv": ["--cpu"]}, None)
        import comfy.options

        comfy.options.enable_args_parsing()
        import comfy.cli_args

        yield comfy
