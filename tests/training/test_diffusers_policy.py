"""diffusers networks give the velocity of diffusers' own pipelines, with right gradients, and prompts and pictures are the pipelines'."""

from typing import Any

import pytest
import torch
from torch import Tensor

from stepwise_grpo.tests import pipelines
from stepwise_grpo.training import lora
from stepwise_grpo.training.backends.diffusers import pipeline as parts
from stepwise_grpo.training.backends.diffusers.architectures import ARCHITECTURES
from stepwise_grpo.training.backends.diffusers.policy import DiffusersPolicy
from stepwise_grpo.training.config import Job

TEXTS = ["a red cube", "the blue ball on the table"]
NEGATIVE = "green"
WIDTH, HEIGHT, STEPS, GUIDANCE = 12, 16, 4, 2.0
CPU = torch.device("cpu")
each = pytest.mark.parametrize("name", pipelines.PIPELINES)
# The last block's text goes nowhere, and neither do its queries.
DEAD = {"sd3": ("transformer_blocks.1.attn.add_q_proj",), "qwen_image": ("transformer_blocks.1.attn.add_q_proj", "transformer_blocks.1.attn.to_add_out")}


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """One pipeline of each architecture, for tests that do not change it."""
    return {}


@pytest.fixture
def pipeline(name, made):
    if name not in made:
        made[name] = pipelines.make(name)
    return made[name]


def policy_of(pipeline: Any, name: str, checkpoint: bool = False, targets: str = "attention", **job: Any) -> DiffusersPolicy:
    """A policy on a network of its own, with a LoRA that does something."""
    network = type(pipeline.transformer).from_config(pipeline.transformer.config)
    network.load_state_dict(pipeline.transformer.state_dict())
    architecture = ARCHITECTURES[name]
    base = {"kind": "diffusers", "name": name, "prefix": architecture.prefix}
    policy = DiffusersPolicy(network, architecture, Job(base=base, targets=targets, rank=4, alpha=8.0, **job), CPU, GUIDANCE)
    policy.set_checkpointing("on" if checkpoint else "off")
    return policy


def learn(policy: DiffusersPolicy, seed: int = 0) -> DiffusersPolicy:
    generator = torch.Generator().manual_seed(seed)
    policy.set_weights({key: torch.randn(w.shape, generator=generator) * (0.05 if "lora_B" in key else 0.3) for key, w in policy.weights().items()})
    return policy


def conditioning(pipeline: Any, name: str) -> tuple[list[list], list]:
    architecture = ARCHITECTURES[name]
    return [parts.encode(pipeline, architecture, text, CPU) for text in TEXTS], parts.encode(pipeline, architecture, NEGATIVE, CPU)


def noise(pipeline: Any, name: str, seed: int) -> Tensor:
    shape = parts.latent_shape(pipeline, ARCHITECTURES[name], WIDTH, HEIGHT, 1)
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))


# velocities


def own_run(pipeline: Any, name: str, text: str, x: Tensor, cfg: float, even: list[float]) -> Tensor:
    """The pipeline's final latents from the noise ``x``, in our layout; ``cfg`` as each pipeline counts it."""
    if name in ("flux", "qwen_image"):
        n, c = x.shape[:2]
        x = pipeline._pack_latents(x, n, c, *x.shape[-2:])
    options = {
        "sd3": {"guidance_scale": cfg, "sigmas": even},
        "flux": {"true_cfg_scale": cfg, "guidance_scale": GUIDANCE, "sigmas": even},
        "qwen_image": {"true_cfg_scale": cfg, "sigmas": even},
        "z_image": {"guidance_scale": cfg - 1, "sigmas": even},
        "wan": {"guidance_scale": cfg, "num_frames": 1},
    }[name]
    height, width = (HEIGHT, WIDTH) if name != "wan" else (16, 16)
    out = pipeline(text, negative_prompt=NEGATIVE, height=height, width=width, num_inference_steps=STEPS, latents=x, output_type="latent", **options)[0]
    if name in ("flux", "qwen_image"):
        out = pipeline._unpack_latents(out, HEIGHT, WIDTH, pipeline.vae_scale_factor)
    return out


@each
@pytest.mark.parametrize("cfg", [1.0, 4.0])
def test_an_ode_run_ends_where_the_pipelines_own_does(name, cfg, pipeline):
    """Two prompts in one batch here, one by one there. Wan's pipeline takes no sigmas: it decides, we follow."""
    x = torch.cat([noise(pipeline, name, seed) for seed in range(2)])
    even = [1 - k / STEPS for k in range(STEPS)]
    theirs = torch.cat([own_run(pipeline, name, text, x[[i]], cfg, even) for i, text in enumerate(TEXTS)])
    times = pipeline.scheduler.sigmas.tolist()
    if name != "wan":
        assert parts.time_grid(pipeline, STEPS, tuple(x.shape[1:]), None) == times
    policy, (prompts, negative) = policy_of(pipeline, name), conditioning(pipeline, name)
    ours = x
    with torch.no_grad(), policy.prompts(prompts, negative, cfg, [2, *x.shape[1:]]):
        for t, t_next in zip(times, times[1:]):
            ours = ours + (t_next - t) * policy.velocity(ours, torch.full((2,), t), torch.arange(2))
    assert (theirs - x).std() > 0.3 and theirs.shape == ours.shape
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@each
def test_rows_with_their_own_times_and_prompts_equal_separate_calls(name, pipeline):
    policy, (prompts, negative) = learn(policy_of(pipeline, name)), conditioning(pipeline, name)
    x, t, rows = torch.cat([noise(pipeline, name, seed) for seed in range(3)]), torch.tensor([0.9, 0.2, 0.5]), torch.tensor([1, 0, 1])
    with torch.no_grad(), policy.prompts(prompts, negative, 4.0, [3]):
        together, apart = policy.velocity(x, t, rows), torch.cat([policy.velocity(x[[i]], t[[i]], rows[[i]]) for i in range(3)])
    with torch.no_grad(), policy.prompts(prompts, negative, 4.0, [2], rows_per_call=2):
        chunked = policy.velocity(x, t, rows)
    assert (together - apart).abs().max() <= 1e-4 and (together - chunked).abs().max() <= 1e-4
    assert (together[0] - together[2]).abs().max() > 0.1


def test_a_velocity_outside_prompts_is_refused(made):
    with pytest.raises(RuntimeError, match="inside prompts"):
        policy_of(pipelines.make("flux"), "flux").velocity(torch.zeros(1, 16, 8, 6), torch.ones(1), torch.zeros(1, dtype=torch.long))


# gradients


def gradients(policy: DiffusersPolicy, pipeline: Any, name: str, target: Tensor) -> dict[str, Tensor | None]:
    for parameter in policy.parameters():
        parameter.grad = None
    with policy.training():
        (value(policy, pipeline, name) * target).sum().backward()
    return {key: parameter.grad for key, parameter in zip(policy.weights(), policy.parameters())}


def value(policy: DiffusersPolicy, pipeline: Any, name: str) -> Tensor:
    prompts, negative = conditioning(pipeline, name)
    x, t = torch.cat([noise(pipeline, name, seed) for seed in range(2)]), torch.tensor([0.9, 0.4])
    with policy.prompts(prompts, negative, 3.0, [2]):
        return policy.velocity(x, t, torch.arange(2))


@each
def test_gradients_agree_with_a_finite_difference_and_with_checkpointing(name, pipeline):
    target = torch.cat([noise(pipeline, name, seed + 5) for seed in range(2)])
    policy, checkpointed = learn(policy_of(pipeline, name)), learn(policy_of(pipeline, name, checkpoint=True))
    found, again = gradients(policy, pipeline, name, target), gradients(checkpointed, pipeline, name, target)
    assert checkpointed.network.gradient_checkpointing and not policy.network.gradient_checkpointing
    alive = [key for key in found if not key.startswith(DEAD.get(name, ()))]
    assert all(found[key].isfinite().all() and found[key].any() for key in alive)
    assert not any(found[key] is not None and found[key].any() for key in found if key not in alive)
    difference = sum((found[key] - again[key]).double().square().sum() for key in alive) / sum(found[key].double().square().sum() for key in alive)
    assert difference.sqrt() <= 1e-6
    weights, generator = policy.weights(), torch.Generator().manual_seed(1)
    direction = {key: torch.randn(w.shape, generator=generator) * w.std() for key, w in weights.items()}
    slopes = []
    for step in (0.02, 0.01):
        ends = []
        for sign in (1, -1):
            policy.set_weights({key: w + sign * step * direction[key] for key, w in weights.items()})
            with torch.no_grad():
                ends.append((value(policy, pipeline, name).double() * target).sum().item())
        slopes.append((ends[0] - ends[1]) / (2 * step))
    exact = sum((found[key].double() * direction[key]).sum().item() for key in alive)
    assert (4 * slopes[1] - slopes[0]) / 3 == pytest.approx(exact, rel=1e-2)


@each
def test_the_base_is_the_network_without_its_lora(name, pipeline):
    policy = learn(policy_of(pipeline, name))
    with torch.no_grad():
        with policy.base():
            base = value(policy, pipeline, name)
        assert (value(policy, pipeline, name) - base).abs().max() > 1e-2
        assert torch.equal(base, value(policy_of(pipeline, name), pipeline, name))


# layers


@each
def test_presets_mean_attention_and_feed_forward_layers(name, pipeline):
    layers = lambda targets: set(lora.target_layers(pipeline.transformer, targets))
    attention, both, everything = layers("attention"), layers("attention_mlp"), layers("all")
    assert attention < both < everything
    blocks = [path for path in everything if ".attn" in path or ".attention." in path or path.endswith("blocks.1.proj_out") or path.endswith("blocks.0.proj_out")]
    assert attention == set(blocks)
    more = {"sd3": 8 - 2, "flux": 4 * 2 + 2, "qwen_image": 8, "z_image": 3 * 4, "wan": 4}[name]  # SD3's last block has no text side
    assert len(both - attention) == more


# pictures and shapes


@each
def test_pictures_are_the_pipelines(name, pipeline):
    x = torch.cat([noise(pipeline, name, seed) for seed in range(2)])
    images = parts.VaeDecoder(pipeline, ARCHITECTURES[name])(x)
    assert images.shape == (2, HEIGHT, WIDTH, 3) and images.std() > 0.05 and 0 <= images.min() and images.max() <= 1
    config = pipeline.vae.config
    if ARCHITECTURES[name].frames:
        expected = pipeline.vae.decode(x * config.latents_std[0] + config.latents_mean[0])[0][:, :, 0]
    else:
        expected = pipeline.vae.decode(x / config.scaling_factor + config.shift_factor)[0]
    assert torch.allclose(images, (expected.movedim(1, -1) / 2 + 0.5).clamp(0, 1), atol=1e-5)


@pytest.mark.parametrize(("width", "frames", "said"), [(13, 1, "width must be a multiple of 4"), (12, 5, "frames must be 1")])
def test_sizes_that_do_not_fit_are_named(made, width, frames, said):
    with pytest.raises(ValueError, match=said):
        parts.latent_shape(pipelines.make("flux"), ARCHITECTURES["flux"], width, 16, frames)


def test_a_shift_of_ones_own_takes_the_place_of_the_schedulers():
    grid = parts.time_grid(pipelines.make("flux"), 4, (16, 8, 8), 3.0)
    assert grid == pytest.approx([1.0, 0.9, 0.75, 0.5, 0.0])
