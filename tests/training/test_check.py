"""python training check: one table, one exit code, one sentence for what it could not look at."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from stepwise_grpo.training import check

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def run(bench, comfyui_folder, monkeypatch, capsys, tmp_path):
    """Exit code and output of the command in this process."""
    monkeypatch.setattr(sys, "argv", sys.argv)

    def run(model: str, *options: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            check.main([model, "--size", "64", "--rank", "4", "--comfy", str(comfyui_folder), "--output", str(tmp_path / "output"), *options])
        out = capsys.readouterr()
        return ended.value.code, out.out, out.err

    return run


def test_a_model_file_is_checked_by_the_real_command(bench, comfyui_folder, tmp_path):
    report = tmp_path / "report é.json"
    command = [sys.executable, str(ROOT / "training"), "check", str(bench.file()), "--size", "64", "--comfy", str(comfyui_folder), "--output", str(tmp_path), "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text("utf-8"))
    assert found["passed"] and len(found["findings"]) == 12
    for finding in found["findings"]:
        assert finding["name"] in done.stdout and finding["figure"] in done.stdout
    assert done.stdout.rstrip().endswith("can be trained")


@pytest.mark.parametrize("options", [("--cfg", "4"), ("--targets", "all"), ("--kind", "checkpoints")])
def test_its_options_reach_the_check(bench, models, run, options, tmp_path):
    path = bench.file()
    if "checkpoints" in options:
        path = models / "whole.safetensors"
        tensors = safetensors.torch.load_file(bench.file())
        safetensors.torch.save_file({f"model.diffusion_model.{key}": tensor for key, tensor in tensors.items()}, path)
    code, out, _ = run(str(path), *options)
    assert code == 0 and "can be trained" in out
    assert ("24 of 24 layers" in out) == ("all" in options)


def test_a_name_below_comfyuis_folders_will_do(bench, run):
    code, out, err = run(bench.file().name)
    assert code == 0, err
    assert f"{bench.file().name}: can be trained" in out


def test_what_must_not_be_trained_ends_with_1_and_the_reason(bench, models, run, tmp_path):
    tensors = safetensors.torch.load_file(bench.file())
    tensors["joint_blocks.0.x_block.attn.qkv.weight"][0] = float("nan")
    safetensors.torch.save_file(tensors, models / "nan.safetensors")
    report = tmp_path / "report.json"
    code, out, _ = run("nan.safetensors", "--json", str(report))
    assert code == 1 and "must not be trained. gradients: NaN or infinite" in out
    assert not json.loads(report.read_text("utf-8"))["passed"]


def not_a_model(models: Path) -> str:
    safetensors.torch.save_file({"a": torch.zeros(2)}, models / "notes.safetensors")
    return "notes.safetensors"


def cut_short(models: Path) -> str:
    (models / "cut.safetensors").write_bytes(next(models.glob("sd3_*.safetensors")).read_bytes()[:5000])
    return "cut.safetensors"


def gguf(models: Path) -> str:
    (models / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    return str(models / "model.gguf")


@pytest.mark.parametrize("make, words", [(not_a_model, "cannot tell what kind of model"), (cut_short, "cannot load"), (gguf, "is a GGUF file"), (lambda models: "gone.safetensors", "gone.safetensors")])
def test_what_it_cannot_look_at_ends_with_2_and_one_sentence(bench, models, run, make, words):
    bench.file()
    code, _, err = run(make(models))
    assert code == 2 and words in err and "Traceback" not in err


def test_a_model_whose_prompts_are_unknown_is_told_what_to_do_instead(bench, run, monkeypatch):
    from stepwise_grpo.training.backends import made_up

    monkeypatch.setattr(made_up, "TEXT_ENCODERS", {})
    code, _, err = run(bench.file().name)
    assert code == 2 and "Start a run with it in ComfyUI" in err


def test_without_comfyuis_record_it_says_what_to_do_and_does_not_wait(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        check.main(["model.safetensors", "--output", str(tmp_path)])
    assert ended.value.code == 2 and "start it once with this pack installed, or say --comfy FOLDER" in capsys.readouterr().err


def test_a_model_that_refuses_the_update_is_a_finding(bench, run, monkeypatch):
    from stepwise_grpo.training.backends import whole_check
    from stepwise_grpo.training.update import RefusedExperience

    def refused(*args, **kwargs):
        raise RefusedExperience("the gradient is NaN or infinite; nothing was changed")

    monkeypatch.setattr(whole_check, "update", refused)
    code, out, _ = run(bench.file().name)
    assert code == 1 and "must not be trained. update: the gradient is NaN" in out
