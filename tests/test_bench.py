"""``python dev.py bench``: the measured ratio, the computed sizes, and the full-size command at tiny size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stepwise_grpo.tools import bench_sizes, bench_start
from stepwise_grpo.tools.networks import parameters_of, patcher_of
from stepwise_grpo.tools.sizes import ACTIVATIONS, SIZES, SMALL
from stepwise_grpo.training.capacity import GIB, Demand
from stepwise_grpo.training.comfyui import prepare

ROOT = Path(__file__).resolve().parent.parent
BILLIONS = {
    "SD3.5 Medium": 2.2, "SD3.5 Large": 8.1, "Flux.1 dev": 11.9, "Flux.2 dev": 32.2, "Chroma": 8.9, "AuraFlow": 6.8, "Lumina2": 2.6, "Z-Image": 6.2,
    "Qwen-Image": 20.4, "HiDream": 17.1, "Wan 2.1 1.3B": 1.4, "Wan 2.1 14B": 14.3, "HunyuanVideo": 12.8, "HunyuanImage 2.1": 17.4, "Omnigen2": 4.0, "LTXV": 1.9,
}  # fmt: skip


def bench(comfyui_folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    environ = {**os.environ, "STEPWISE_COMFYUI": str(comfyui_folder), "PYTHONUTF8": "1"}
    return subprocess.run([sys.executable, str(ROOT / "tools" / "run.py"), "bench", *arguments], env=environ, capture_output=True, encoding="utf-8")


@pytest.fixture(scope="module")
def comfy(comfyui_folder: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        prepare({"root": str(comfyui_folder), "argv": ["--cpu"]}, None)
        from stepwise_grpo.training.backends import comfy as backend

        yield backend


def test_checkpointing_takes_at_most_two_fifths_of_the_memory_and_process_tracker_and_estimate_agree(comfyui_folder, tmp_path):
    done = bench(comfyui_folder, "memory", "--json", str(tmp_path / "memory.json"))
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "memory.json").read_text("utf-8"))
    assert max(found["ratio"].values()) <= found["limit"] == 0.40
    for setting in ("off", "on"):
        assert found[setting]["estimate"] == pytest.approx(found[setting]["tracker"], rel=0.05)
        if found[setting]["process"]:  # a process has some 20 MiB besides its tensors
            assert found[setting]["process"] == pytest.approx(found[setting]["estimate"], rel=0.15, abs=40 * 2**20)


def test_bench_gpu_goes_the_trainers_way_at_tiny_size_and_says_what_its_figures_are_not(comfyui_folder, tmp_path):
    done = bench(comfyui_folder, "gpu", "--small", "--json", str(tmp_path / "gpu.json"))
    assert done.returncode == 0 and "not of the real sizes" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text("utf-8"))
    assert not found["real_sizes"] and set(found["models"]) == set(SMALL) == set(bench_sizes_of_gpu())
    for model in found["models"].values():
        assert model["ratio_error_max"] == 0 and model["grad_norm"] > 0 and model["memory_estimate_bytes"] > 0 and model["seconds"]["update"] > 0


def bench_sizes_of_gpu():
    from stepwise_grpo.tools.bench_gpu import PRECISION

    return PRECISION


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a graphics card")
def test_bench_gpu_without_a_card_says_what_can_be_done(comfyui_folder):
    done = bench(comfyui_folder, "gpu")
    assert done.returncode == 1 and "needs a CUDA graphics card" in done.stderr and "--small" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", SIZES)
def test_the_sizes_are_those_of_the_released_models_and_what_comfyui_reads_from_such_a_file(name, comfy):
    import comfy.model_detection

    size = SIZES[name]
    patcher = patcher_of(size, torch.bfloat16, torch.device("meta"), torch.device("cpu"))
    assert parameters_of(patcher) / 1e9 == pytest.approx(BILLIONS[name], abs=0.06)
    found = comfy.model_detection.detect_unet_config(patcher.model.diffusion_model.state_dict(), "")
    config = comfy.model_detection.model_config_from_unet_config(found)
    assert type(config).__name__ == size.model
    assert {key: found[key] for key in size.config if key in found} == {key: value for key, value in size.config.items() if key in found}


def test_a_tiny_size_gives_every_figure(comfy):
    found = bench_sizes.figures(SMALL["SD3.5 Medium"])
    assert found["parameters"] == pytest.approx(2.0e6, rel=0.1) and found["text_tokens"] == 8
    bf16, fp8 = found["64"]["bf16"], found["64"]["fp8"]
    assert fp8["weights"] == pytest.approx(bf16["weights"] / 2, rel=0.01) and bf16["peak_of_one_row"] > 0 and bf16["card_gib"] == bench_sizes.CARDS[0]


def test_the_smallest_card_takes_weights_row_and_reserve(comfy):
    demand = Demand(weights=20 * GIB, lora=0, fixed=0, row=GIB, block=GIB)
    assert bench_sizes.smallest_card(demand, streams=False) == 24  # 21 + 1.2 + 5 % of 24
    assert bench_sizes.smallest_card(demand, streams=True) == 6
    assert bench_sizes.smallest_card(Demand(weights=500 * GIB, lora=0, fixed=0, row=GIB, block=GIB), streams=False) is None


def test_the_bench_of_memory_has_more_activations_than_weights_per_layer():
    assert ACTIVATIONS.latents["512"] == (16, 64, 64) and ACTIVATIONS.tokens == 154


def test_bench_start_counts_what_only_the_pack_imports_and_fails_above_its_limit(comfyui_folder, tmp_path):
    done = bench(comfyui_folder, "start", "--repeat", "1", "--limit", "2000", "--json", str(tmp_path / "start.json"))
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "start.json").read_text("utf-8"))
    assert not found["failed"] and 1 < found["ms"] < 2000 and 20 < found["count"] < 200  # other machines do other things as well
    assert not {name.split(".")[0] for name in found["dearest"]} & {"torch", "comfy", "numpy", "aiohttp", "peft", "matplotlib"}


def test_bench_start_takes_the_least_of_each_module_and_fails_above_its_limit():
    starts = [{"a": 3.0, "b": 9.0}, {"a": 5.0, "b": 2.0}]
    assert bench_start.figures(starts, 5.0)["ms"] == 5.0 and not bench_start.figures(starts, 5.0)["failed"]
    assert bench_start.figures(starts, 4.9)["failed"] and bench_start.figures(starts, 4.9)["starts_ms"] == [12.0, 7.0]
    assert bench_start.added({"/x/custom_nodes/p.nodes": 1.0, "C:\\x\\custom_nodes\\p.training": 2.0, "json": 3.0}, {"json"}) == {"p.nodes": 1.0, "p.training": 2.0}
