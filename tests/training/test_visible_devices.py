"""The trainer uses the graphics card that ComfyUI was told to use."""

import os
import sys

import pytest

from stepwise_grpo.training.comfyui import prepare, visible_devices

REORDERED = ",".join(map(str, [2, 0, 1, *range(3, 32)]))


@pytest.mark.parametrize(
    "arguments, devices",
    [
        (["--cuda-device", "1"], "1"),
        (["--listen", "--cuda-device=0,2", "--port", "9000"], "0,2"),
        (["--default-device", "2"], REORDERED),
        (["--default-device", "2", "--cuda-device", "1"], "1"),
        (["--cuda-device", "all"], None),
        (["--cuda-device", "all", "--default-device", "2"], None),
        (["--cuda-malloc", "--disable-cuda-malloc", "--default-hashing-function", "sha256"], None),
        ([], None),
    ],
)
def test_the_choice_on_comfyuis_command_line_becomes_the_environment_its_main_sets(arguments, devices):
    found = visible_devices(arguments)
    assert found == ({} if devices is None else dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"), devices))


def test_prepare_sets_it_before_anything_of_comfyui_is_imported(comfyui_folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    prepare({"root": str(comfyui_folder), "argv": ["--cpu", "--cuda-device", "3"]}, None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == os.environ["HIP_VISIBLE_DEVICES"] == "3"
