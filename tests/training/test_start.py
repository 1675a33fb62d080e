"""A run that starts from a LoRA file: version 0 is that LoRA, whatever program named its layers, or the run does not begin."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from stepwise_grpo.tests.bench import Bench
from stepwise_grpo.training import lora
from stepwise_grpo.training.base import Unfit, describe_file
from stepwise_grpo.training.config import Origin, UpdateSettings, to_json
from stepwise_grpo.training.experience import pack
from stepwise_grpo.training.graph_run import GraphRun
from stepwise_grpo.training.job import RunFolder
from stepwise_grpo.training.preview import credit_of
from stepwise_grpo.training.trajectory import Prompt, Trajectory

sd3 = pytest.mark.parametrize("bench", ["sd3"], indirect=True)
sd3_and_flux = pytest.mark.parametrize("bench", ["sd3", "flux"], indirect=True)
RANK = 16
FLUX_2 = ("to_qkv_mlp_proj", ".attn.to_out")  # further names of the same layers in newer ComfyUI, those of Flux.2


@pytest.fixture
def loras(bench, tmp_path, monkeypatch) -> Iterator[Path]:
    from stepwise_grpo.training.backends.loading import folder_paths

    monkeypatch.setitem(folder_paths.folder_names_and_paths, "loras", ([str(tmp_path)], {".safetensors", ".pt"}))
    folder_paths.filename_list_cache.pop("loras", None)
    yield tmp_path


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.2


def key_map(bench: Bench) -> dict[str, Any]:
    import comfy.lora

    return comfy.lora.model_lora_keys_unet(bench.patcher().model, {})


def layers_by_name(bench: Bench, prefix: str, targets: str = "attention") -> dict[str, tuple[int, int]]:
    """(out, in) of every layer of the targets under the names that begin with ``prefix``; parts of a fused layer have their own."""
    module = bench.patcher().model.diffusion_model
    wanted, shapes, result = set(lora.target_layers(module, targets)), lora.linear_shapes(module), {}
    for name, target in key_map(bench).items():
        key, part = (target[0], target[1]) if isinstance(target, tuple) else (target, None)
        layer = key.removeprefix(lora.PREFIX).removesuffix(".weight")
        if name.startswith(prefix) and layer in wanted and not name.endswith(FLUX_2):
            out, width = shapes[layer]
            result[name] = (part[2] if part else out, width)
    return result


def file_like(bench: Bench, program: str, rank: int = 4) -> dict[str, Tensor]:
    """A LoRA as another program writes it. The file's alpha is never its rank."""
    prefix, down, up = {
        "diffusers": ("transformer.", "lora_A.weight", "lora_B.weight"),
        "diffusers of old": ("transformer.", "lora.down.weight", "lora.up.weight"),
        "kohya": ("lora_unet_", "lora_down.weight", "lora_up.weight"),
        "ours": (lora.PREFIX, "lora_A.weight", "lora_B.weight"),
    }[program]
    tensors = {}
    for i, (name, (out, width)) in enumerate(sorted(layers_by_name(bench, prefix).items())):
        tensors[f"{name}.{down}"], tensors[f"{name}.{up}"] = noise(rank, width, seed=2 * i), noise(out, rank, seed=2 * i + 1)
        if program in ("kohya", "ours"):
            tensors[f"{name}.alpha"] = torch.tensor(1.0 + i % 3)
    assert tensors
    return tensors


def job(bench: Bench, path: Path, **settings: Any) -> Any:
    return replace(bench.job(), rank=RANK, start=describe_file(path.name, path), **settings)


def write(folder: Path, tensors: dict[str, Tensor], name: str = "a style é.safetensors") -> Path:
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)
    return folder / name


def opened(bench: Bench, job: Any) -> Any:
    from stepwise_grpo.tests.architectures import detection_of

    with detection_of(bench.architecture):
        return bench.backend.open_policy(job)


def stock(bench: Bench, tensors: dict[str, Tensor]) -> Any:
    import comfy.sd

    return comfy.sd.load_lora_for_models(bench.patcher(), None, dict(tensors), 1.0, 0)[0]


@sd3_and_flux
@pytest.mark.parametrize("program", ["diffusers", "diffusers of old", "kohya", "ours"])
def test_version_0_is_the_lora_as_the_stock_loader_applies_it(bench, loras, program, figure, caplog):
    tensors = file_like(bench, program)
    policy = opened(bench, job(bench, write(loras, tensors)))
    expected, base = bench.velocity(stock(bench, tensors)), bench.velocity(bench.patcher())
    assert "not loaded" not in caplog.text.lower()
    assert (expected - base).abs().max() > 0.1
    assert figure("start", (bench.velocity(policy) - expected).abs().max().item()) <= 1e-5
    weights = policy.weights()
    assert all(torch.equal(weights[name], w) for name, w in policy.first_weights().items())


@sd3_and_flux
def test_merged_and_unmerged_live_lora_apply_the_same_start(bench, loras):
    from stepwise_grpo.training.backends.unmerged import read_factors, with_unmerged_lora

    tensors, base = file_like(bench, "diffusers"), bench.patcher()
    live = with_unmerged_lora(base, read_factors(base, tensors), 1.0)
    assert (bench.velocity(live) - bench.velocity(stock(bench, tensors))).abs().max() <= 1e-5


@sd3
def test_parts_that_share_a_need_its_rank_once(bench, loras):
    tensors = file_like(bench, "diffusers", rank=RANK)
    for name in [name for name in tensors if ".to_q.lora_A" in name or ".add_q_proj.lora_A" in name]:
        for other in ("k", "v"):
            tensors[name.replace("to_q", f"to_{other}").replace("add_q_proj", f"add_{other}_proj")] = tensors[name].clone()
    policy = opened(bench, job(bench, write(loras, tensors)))
    assert (bench.velocity(policy) - bench.velocity(stock(bench, tensors))).abs().max() <= 1e-4


@sd3
def test_layers_and_ranks_it_lacks_start_fresh(bench, loras):
    tensors = {name: w for name, w in file_like(bench, "kohya").items() if "joint_blocks_0" in name}
    policy = opened(bench, job(bench, write(loras, tensors)))
    weights, fresh = policy.weights(), lora.first_weights(policy.weights(), policy.job)
    for name, w in weights.items():
        begun = slice(4, None) if "joint_blocks.0" in name else slice(None)
        where = (begun, slice(None)) if "lora_A" in name else (slice(None), begun)
        assert torch.equal(w[where], fresh[name][where]), name
        assert torch.equal(w, fresh[name]) == ("joint_blocks.1" in name), name
    assert all(gradient is None or gradient.isfinite().all() for gradient in bench.gradients(policy).values())


@sd3
def test_the_reference_of_the_pull_is_the_start(bench, loras):
    tensors = file_like(bench, "kohya")
    policy = opened(bench, job(bench, write(loras, tensors)))
    begun = policy.weights()
    policy.set_weights({name: w + 0.1 for name, w in begun.items()})
    moved = bench.velocity(policy)
    with policy.base():
        assert (bench.velocity(policy) - bench.velocity(stock(bench, tensors))).abs().max() <= 1e-5
    assert torch.equal(bench.velocity(policy), moved)


def lokr(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    name = next(name for name in tensors if name.endswith("lora_down.weight")).removesuffix(".lora_down.weight")
    rest = {key: w for key, w in tensors.items() if not key.startswith(name + ".")}
    return rest | {f"{name}.lokr_w1": noise(4, 4, seed=0), f"{name}.lokr_w2": noise(96, 32, seed=1)}


def with_more(end: str, value: Tensor) -> Any:
    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        name = next(name for name in tensors if name.endswith("lora_down.weight")).removesuffix(".lora_down.weight")
        return tensors | {f"{name}.{end}": value}

    return spoil


def narrower(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: w[:, :-8] if name.endswith("lora_down.weight") else w for name, w in tensors.items()}


UNFIT = {
    "LoKr": (lokr, {}, "is a LoKr, not a plain LoRA"),
    "DoRA": (with_more("dora_scale", torch.ones(384, 1)), {}, "is a DoRA or convolution, not a plain LoRA"),
    "full difference": (with_more("diff", torch.zeros(384, 128)), {}, "is a full difference, not a plain LoRA"),
    "another size": (narrower, {}, "has another shape than this model's: it was made for another model"),
    "another architecture": (lambda tensors: {"lora_unet_input_blocks_1." + name.split(".", 1)[1]: w for name, w in tensors.items()}, {}, "belong to no layer of this model.*another model"),
    "half of another": (lambda tensors: tensors | {"lora_unet_input_blocks_1.lora_up.weight": noise(2, 2, seed=0)}, {}, "1 of its tensors belong to no layer.*lora_unet_input_blocks_1"),
    "rank": (lambda tensors: tensors, {"rank": 3}, "has rank 4, this run has 3; set rank to at least 4"),
    "targets": (lambda tensors: tensors, {"pattern": r".*\.x_block\.attn\..*"}, "context_block.*which this run does not train; choose targets or a target_pattern"),
}  # fmt: skip


@sd3
@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_continued_is_refused_with_the_remedy(bench, loras, case):
    spoil, settings, says = UNFIT[case]
    path = write(loras, spoil(file_like(bench, "kohya")))
    with pytest.raises(Unfit, match=f"(?s)start_from: this run cannot start from the LoRA 'a style é.safetensors'.*{says}"):
        opened(bench, replace(job(bench, path), **settings))


@sd3
def test_the_text_encoders_part_is_left_out_as_live_lora_leaves_it_out(bench, loras):
    tensors = file_like(bench, "kohya")
    more = tensors | {"lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": noise(4, 8, seed=0)}
    policy = opened(bench, job(bench, write(loras, more)))
    assert (bench.velocity(policy) - bench.velocity(stock(bench, tensors))).abs().max() <= 1e-5


@sd3
def test_a_file_that_is_gone_or_another_is_refused(bench, loras):
    tensors = file_like(bench, "kohya")
    path = write(loras, tensors)
    its_job = job(bench, path)
    opened(bench, its_job)
    write(loras, {name: w for name, w in tensors.items() if "joint_blocks_0" in name})
    with pytest.raises(ValueError, match="the LoRA 'a style é.safetensors' that this run started from has changed since the run was started"):
        opened(bench, its_job)
    path.unlink()
    with pytest.raises(ValueError, match="that this run started from is no longer in ComfyUI's 'loras' folders"):
        opened(bench, its_job)


@sd3
def test_a_file_that_is_no_safetensors_is_read_too(bench, loras):
    tensors = file_like(bench, "kohya")
    torch.save(tensors, loras / "old.pt")
    policy = opened(bench, job(bench, loras / "old.pt"))
    assert (bench.velocity(policy) - bench.velocity(stock(bench, tensors))).abs().max() <= 1e-5


# a run


def queue(bench: Bench, folder: RunFolder, its_job: Any, seed: int, version: int) -> None:
    """One iteration that the graph made with the newest version, or with version 0."""
    e = bench.experience()
    prompts = tuple(Prompt(f"prompt {i}", i, entries) for i, entries in enumerate(e.conditioning))
    latest = folder.latest() or {"digest": ""}
    origin = Origin(run=folder.name, version=version, digest=latest["digest"] if version else "", start=its_job.start)
    policy = opened(bench, its_job)
    if version:
        policy.set_weights(lora.load(folder.version_file(version).read_bytes()))
    velocities = torch.stack([bench_velocity(bench, policy, e, k) for k in range(e.schedule.steps)])
    trajectory = Trajectory(e.states, velocities, e.schedule, prompts, e.negative, e.cfg, seed, origin, its_job.base, 0)
    rewards = torch.randn(e.schedule.steps + 1, 4, generator=torch.Generator().manual_seed(seed))
    credit = credit_of(trajectory, rewards, "centred", {"reward": "random"}, None, 0, {})
    folder.agree_on_job(to_json(its_job))
    folder.queue(pack(trajectory, credit, its_job, UpdateSettings(learning_rate=1e-2, updates=2, beta=0.1)))


@torch.no_grad()
def bench_velocity(bench: Bench, policy: Any, e: Any, k: int) -> Tensor:
    with policy.prompts(e.conditioning, e.negative, e.cfg, list(e.states[0].shape)):
        return policy.velocity(e.states[k], torch.full((4,), e.schedule.times[k]), torch.arange(4) // 2)


def train(bench: Bench, folder: RunFolder, its_job: Any, run: GraphRun | None = None) -> tuple[GraphRun, dict]:
    run = run or GraphRun(folder, its_job, opened(bench, its_job))
    (path,) = folder.waiting()
    event = run.train(path, path.stem.split("-")[-1])
    path.unlink()
    return run, event


@sd3
def test_training_goes_on_from_the_start_and_resumes_to_the_bit(bench, loras, tmp_path):
    its_job = job(bench, write(loras, file_like(bench, "diffusers")))
    one, two = RunFolder(tmp_path / "one", "r"), RunFolder(tmp_path / "two", "r")
    for folder, resumes in ((one, False), (two, True)):
        queue(bench, folder, its_job, 0, 0)
        run, event = train(bench, folder, its_job)
        assert event["ratio_error_max"] <= 1e-6 and event["graph_velocity_error"] <= 1e-5 and event["kl"] > 0
        assert event["keys_matched"] == event["keys_total"] == bench.architecture.linear
        queue(bench, folder, its_job, 1, 1)
        run, _ = train(bench, folder, its_job, None if resumes else run)
        queue(bench, folder, its_job, 2, 0)  # late: version 0 made it
        train(bench, folder, its_job, None if resumes else run)
    files = [[folder.version_file(version).read_bytes() for version in (1, 2, 3)] for folder in (one, two)]
    assert files[0] == files[1]
    started = opened(bench, its_job).weights()
    moved = lora.load(files[0][0])
    assert 0 < max((moved[name] - w).abs().max().item() for name, w in started.items()) < 0.05


@sd3
def test_an_iteration_of_a_run_without_the_start_is_another_job(bench, loras, tmp_path):
    its_job = job(bench, write(loras, file_like(bench, "kohya")))
    folder = RunFolder(tmp_path / "out", "r")
    folder.agree_on_job(to_json(its_job))
    folder.queue(b"experience")
    with pytest.raises(ValueError, match=r"run 'r' was started with start_from \(in Live LoRA\) = a style é.safetensors; this graph says none. Set start_from"):
        folder.agree_on_job(to_json(replace(its_job, start=None)))
    with pytest.raises(ValueError, match="run 'r' was started with target_pattern = ''; this graph says 'x'. Set target_pattern back"):
        folder.agree_on_job(to_json(replace(its_job, pattern="x")))
    with pytest.raises(ValueError, match="a style é.safetensors, and that file has changed"):
        folder.agree_on_job(to_json(replace(its_job, start={**its_job.start, "sha256": "other"})))
