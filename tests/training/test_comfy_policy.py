"""ComfyUI's own model as a policy: how it is opened and refused, LoRA off and on, and a version made by the trainer.

On a tiny random SD3 that ComfyUI's loader takes unaided. ComfyUI runs in this process: it can be configured once per
process only, and every test that needs it configures it alike (CPU, the folder of conftest). Gradients, guidance and
the same promises on all architectures: test_architectures.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.bench import ROWS, TIMES, Bench
from stepwise_grpo.training import lora
from stepwise_grpo.training.base import DEMO, check_same, describe
from stepwise_grpo.training.config import Job, Origin, UpdateSettings, to_json
from stepwise_grpo.training.experience import pack
from stepwise_grpo.training.job import RunFolder
from stepwise_grpo.training.live_run import LiveRun
from stepwise_grpo.training.preview import credit_of
from stepwise_grpo.training.trajectory import Prompt, Trajectory

# opening


def test_a_base_model_is_opened_through_comfyuis_folders(bench):
    policy = bench.backend.open_policy(bench.job())
    assert policy.job == bench.job() and len(policy.parameters()) == 2 * bench.architecture.linear
    assert all(parameter.requires_grad and parameter.dtype == torch.float32 and not parameter.is_inference() for parameter in policy.parameters())


def test_the_trainer_may_be_inside_inference_mode_as_comfyuis_executor_is(bench):
    with torch.inference_mode():
        policy = bench.backend.open_policy(bench.job())
    assert not any(parameter.is_inference() for parameter in policy.parameters())
    assert not any(w.is_inference() for w in policy.patcher.model.diffusion_model.parameters())


def test_a_model_whose_file_is_gone_is_refused_by_name_with_the_remedy(bench):
    job = replace(bench.job(), base={**bench.job().base, "name": "deleted.safetensors"})
    with pytest.raises(
        ValueError, match="base model 'deleted.safetensors' is no longer in ComfyUI's 'diffusion_models' folders; put it back or start a new run"
    ):
        bench.backend.open_policy(job)


@pytest.mark.parametrize(
    "replacement", [lambda data: data[:-4], lambda data: data.replace(b'.weight"', b'.weighs"', 1)], ids=["shorter", "of equal size"]
)
def test_a_model_whose_file_was_replaced_is_refused_by_name(replacement, bench):
    job, path = bench.job(), bench.file()
    kept = path.rename(path.with_suffix(".kept"))  # not overwritten: the loader maps files into memory
    path.write_bytes(replacement(kept.read_bytes()))
    try:
        with pytest.raises(ValueError, match="has changed since the run was started"):
            bench.backend.open_policy(job)
    finally:
        kept.replace(path)
    check_same(job.base, lambda kind, name: str(path))


@pytest.mark.parametrize("kind", ["diffusion_models", "checkpoints"])
def test_a_file_that_is_no_model_is_refused_by_name(kind, bench, models):
    from stepwise_grpo.training.backends.loading import set_model_folders

    set_model_folders({kind: [str(models)]})
    path = models / "notes.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    with pytest.raises((ValueError, RuntimeError), match="notes.safetensors"):
        bench.backend.open_policy(Job(base=describe(kind, path.name, path)))


SAMPLING = {
    "eps, as SDXL": ("ModelSamplingDiscrete", "EPS"),
    "v prediction": ("ModelSamplingDiscrete", "V_PREDICTION"),
    "edm": ("ModelSamplingContinuousEDM", "EDM"),
    "image to image": ("ModelSamplingDiscreteFlow", "IMG_TO_IMG_FLOW"),
    "larger noise": ("ModelSamplingContinuousEDM", "CONST"),
    "flow": ("ModelSamplingDiscreteFlow", "CONST"),
    "flux": ("ModelSamplingFlux", "CONST"),
}


def sampling(kind: str, patcher: Any) -> Any:
    """A sampling object as ComfyUI makes it for a kind of model."""
    import comfy.model_sampling

    if not all(hasattr(comfy.model_sampling, name) for name in SAMPLING[kind]):
        pytest.skip(f"this ComfyUI has no {SAMPLING[kind]}")
    bases = tuple(getattr(comfy.model_sampling, name) for name in SAMPLING[kind])
    return type("Sampling", bases, {})(patcher.model.model_config)


@pytest.mark.parametrize(
    "kind, words",
    [
        ("eps, as SDXL", "not flow matching"),
        ("v prediction", "not flow matching"),
        ("edm", "not flow matching"),
        ("image to image", "not flow matching"),
        ("larger noise", r"noise levels of this model \(SD3\) end at 120"),
    ],
)
def test_a_model_that_is_not_flow_matching_is_refused(kind, words, bench):
    patcher = bench.patcher()
    patcher.add_object_patch("model_sampling", sampling(kind, patcher))
    with pytest.raises(ValueError, match=words):
        bench.backend.ComfyPolicy(patcher, bench.job())


def test_a_model_with_a_noise_scale_of_its_own_is_refused(bench):
    patcher = bench.patcher()
    scaled = sampling("flow", patcher)
    scaled.noise_scaling = lambda sigma, noise, latent, max_denoise=False: sigma * 0.5 * noise + (1 - sigma) * latent
    patcher.add_object_patch("model_sampling", scaled)
    with pytest.raises(ValueError, match="mixes noise and picture in its own way"):
        bench.backend.check_flow_matching(patcher)


@pytest.mark.parametrize("kind", ["flow", "flux"])
def test_flow_models_are_taken_whatever_their_shift(kind, bench):
    patcher = bench.patcher()
    shifted = sampling(kind, patcher)
    shifted.set_parameters(shift=1.7)
    patcher.add_object_patch("model_sampling", shifted)
    bench.backend.check_flow_matching(patcher)


def test_an_unknown_preset_of_targets_is_refused_with_the_known_ones(bench):
    with pytest.raises(ValueError, match="targets must be one of attention, .*; got 'everything'"):
        bench.backend.open_policy(replace(bench.job(), targets="everything"))


def test_weights_of_another_lora_are_refused(bench):
    policy = bench.policy()
    with pytest.raises(ValueError, match="this LoRA has 1 tensors, the model takes 14"):
        policy.set_weights({"a.lora_A.weight": torch.zeros(1)})


# calling


def test_a_fresh_lora_changes_nothing(bench):
    fresh = bench.backend.open_policy(bench.job())
    assert torch.equal(bench.velocity(fresh), bench.velocity(bench.patcher()))


def test_the_base_is_the_model_without_the_lora_to_the_bit_and_the_lora_comes_back(bench):
    policy = bench.policy()
    on = bench.velocity(policy)
    with policy.base():
        off = bench.velocity(policy)
    assert torch.equal(off, bench.velocity(bench.patcher()))
    assert (on - off).abs().max() > 1e-3 and torch.equal(bench.velocity(policy), on)
    assert all(gradient is not None for gradient in bench.gradients(policy).values())


def test_the_velocity_is_what_comfyuis_denoised_picture_says(bench):
    """v = (x - x0_hat) / t, and x0_hat is what ComfyUI's own model call returns."""
    patcher = bench.patcher()
    (cond, options), row = bench.prompts[0][0], slice(0, 1)
    with torch.no_grad(), bench.backend.ready(patcher, list(bench.x.shape)):
        x0 = patcher.model.apply_model(bench.x[row], TIMES[row], c_crossattn=cond, y=options["pooled_output"])
        v = bench.backend.ModelVelocity(patcher, bench.prompts, bench.negative, 1.0)(bench.x[row], TIMES[row], ROWS[row])
    torch.testing.assert_close(bench.x[row] - TIMES[0] * v, x0, rtol=0, atol=1e-5)


def test_guidance_is_comfyuis(bench):
    patcher = bench.patcher()
    unguided = bench.velocity(patcher, 1.0)
    with torch.no_grad(), bench.backend.ready(patcher, list(bench.x.shape)):
        negative = bench.backend.ModelVelocity(patcher, [bench.negative] * 3, bench.negative, 1.0)(bench.x, TIMES, ROWS)
    torch.testing.assert_close(bench.velocity(patcher, 3.0), negative + 3 * (unguided - negative), rtol=0, atol=1e-4)


def calls_of(bench: Bench, rows_per_call: int) -> tuple[list[int], torch.Tensor]:
    """Rows of every call of the network, and what came out."""
    patcher, seen = bench.patcher(), []
    patcher.model.diffusion_model.register_forward_pre_hook(lambda module, arguments: seen.append(len(arguments[0])))
    with torch.no_grad(), bench.backend.ready(patcher, list(bench.x.shape)):
        ticks: list[int] = []
        v = bench.backend.ModelVelocity(patcher, bench.prompts, bench.negative, 1.0, ticks.append, rows_per_call)(bench.x, TIMES, ROWS)
    assert sum(ticks) == sum(seen) == 3
    return seen, v


def test_prompts_of_unequal_length_go_through_the_network_in_calls_of_their_own(bench):
    assert [cond.shape[1] for ((cond, _),) in bench.prompts] == [6, 5, 6]
    seen, v = calls_of(bench, 100)
    assert seen == [2, 1]
    parts, apart = calls_of(bench, 1)
    assert parts == [1, 1, 1]
    torch.testing.assert_close(v, apart, rtol=0, atol=1e-5)


def test_velocity_outside_of_prompts_is_an_error(bench):
    policy = bench.policy()
    with pytest.raises(RuntimeError, match="only defined inside prompts"):
        policy.velocity(bench.x, TIMES, ROWS)


def test_memory_is_given_back_when_a_call_fails(bench):
    policy = bench.policy()
    with pytest.raises(RuntimeError, match="on purpose"):
        with bench.open(policy):
            raise RuntimeError("on purpose")
    with pytest.raises(RuntimeError, match="only defined inside prompts"):
        policy.velocity(bench.x, TIMES, ROWS)


# a version


def trained(bench: Bench, output: Path) -> tuple[LiveRun, dict]:
    """A version that LiveRun made from a rollout in the graph's code."""
    e, folder = bench.experience(), RunFolder(output, "tiny")
    prompts = tuple(Prompt(f"prompt {i}", i, entries) for i, entries in enumerate(e.conditioning))
    trajectory = Trajectory(e.states, e.velocities, e.schedule, prompts, e.negative, e.cfg, 0, Origin(), e.job.base, 0)
    rewards = torch.randn(e.schedule.steps + 1, 4, generator=torch.Generator().manual_seed(0))
    credit = credit_of(trajectory, rewards, "centred", {"reward": "random"}, None, 0, {})
    folder.agree_on_job(to_json(e.job))
    folder.queue(pack(trajectory, credit, e.job, UpdateSettings(learning_rate=1e-2, updates=2)))
    run = LiveRun(folder, e.job, bench.backend.open_policy(e.job))
    (path,) = folder.waiting()
    return run, run.train(path, path.stem.split("-")[-1])


@pytest.fixture
def version(bench, tmp_path):
    run, event = trained(bench, tmp_path)
    return run, event, run.folder.version_file(1)


def test_a_version_is_recognised_whole_by_comfyuis_loader(version, bench):
    _, event, _ = version
    assert event["keys_matched"] == event["keys_total"] == bench.architecture.linear
    assert event["ratio_error_max"] == 0 and event["graph_velocity_error"] < 1e-5


def stock_velocity(bench: Bench, path: Path) -> torch.Tensor:
    import comfy.sd
    import comfy.utils

    return bench.velocity(comfy.sd.load_lora_for_models(bench.patcher(), None, comfy.utils.load_torch_file(str(path), safe_load=True), 1.0, 0)[0])


def test_the_version_file_means_in_the_stock_loader_what_the_trainer_has_in_memory(version, bench):
    run, _, path = version
    in_memory = bench.velocity(run.policy)
    assert (in_memory - bench.velocity(bench.patcher())).abs().max() > 1e-2  # it did learn
    assert (stock_velocity(bench, path) - in_memory).abs().max() <= 1e-4


@pytest.mark.parametrize("spoil", ["twice as strong", "without alpha", "another layer's"])
def test_the_comparison_notices_a_lora_that_is_not_the_trained_one(spoil, version, bench, tmp_path):
    run, _, path = version
    tensors = safetensors.torch.load(path.read_bytes())
    for name in list(tensors):
        if spoil == "twice as strong" and name.endswith("lora_B.weight"):
            tensors[name] *= 2
        if spoil == "without alpha" and name.endswith(".alpha"):
            del tensors[name]
    if spoil == "another layer's":
        one, two = (name for name in sorted(tensors) if name.endswith("attn.proj.lora_B.weight") and "joint_blocks.0" in name)
        tensors[one], tensors[two] = tensors[two], tensors[one]
    spoilt = tmp_path / "spoilt.safetensors"
    safetensors.torch.save_file(tensors, spoilt)
    assert (stock_velocity(bench, spoilt) - bench.velocity(run.policy)).abs().max() > 1e-4


def test_a_version_opened_again_is_the_same_to_the_bit(version, bench):
    run, _, _ = version
    again = LiveRun(run.folder, run.job, bench.backend.open_policy(run.job))
    assert again.version == 1
    assert torch.equal(bench.velocity(again.policy), bench.velocity(run.policy))


def test_names_the_loader_does_not_know_are_counted(bench):
    policy = bench.policy()
    tensors = lora.file_tensors(policy.weights(), 8.0)
    name = next(name for name in tensors if name.endswith("lora_A.weight"))
    spoilt = {key.replace(name.removesuffix(".lora_A.weight"), "diffusion_model.no.such.layer"): w for key, w in tensors.items()}
    assert policy.matched_keys(spoilt) == (bench.architecture.linear - 1, bench.architecture.linear)


def test_the_demo_model_needs_no_file_name(backend):
    policy = backend.open_policy(Job(base=DEMO, rank=2))
    assert policy.parameters() and policy.job.base == {"kind": "demo"}
