"""Noise depends on what it is for and on nothing else."""

import pytest
import torch

from stepwise_grpo.training.core.noise import initial_noise, step_noise

SHAPE = (4, 4, 4)


def test_noise_is_the_same_whatever_was_drawn_before():
    first = step_noise(7, 2, 3, 5, SHAPE)
    torch.manual_seed(99)
    torch.randn(10)
    initial_noise(7, 2, SHAPE)
    assert torch.equal(step_noise(7, 2, 3, 5, SHAPE), first)


def test_any_split_of_the_batch_has_the_same_noise():
    rows = [(prompt, member) for prompt in range(3) for member in range(4)]
    whole = torch.stack([step_noise(1, prompt, member, 0, SHAPE) for prompt, member in rows])
    for size in (1, 5, 7, 12):
        parts = [torch.stack([step_noise(1, *row, 0, SHAPE) for row in rows[i : i + size]]) for i in range(0, len(rows), size)]
        assert torch.equal(torch.cat(parts), whole)


def test_torchs_own_generator_is_left_alone():
    torch.manual_seed(0)
    expected = torch.randn(3)
    torch.manual_seed(0)
    step_noise(0, 0, 0, 0, SHAPE)
    assert torch.equal(torch.randn(3), expected)


def test_every_seed_prompt_member_and_step_has_noise_of_its_own():
    keys = [(seed, prompt, member, step) for seed in range(3) for prompt in range(3) for member in range(3) for step in range(3)]
    drawn = torch.stack([step_noise(*key, SHAPE) for key in keys] + [initial_noise(seed, prompt, SHAPE) for seed in range(3) for prompt in range(3)])
    assert len(torch.unique(drawn.flatten(1), dim=0)) == len(keys) + 9


def test_the_initial_noise_is_no_steps_noise():
    initial = initial_noise(0, 0, SHAPE)
    for step in range(20):
        for member in range(4):
            correlation = (initial * step_noise(0, 0, member, step, SHAPE)).mean()
            assert correlation.abs() < 0.7  # equal noise would give about 1


def test_keys_are_not_glued_together():
    assert not torch.equal(step_noise(1, 11, 1, 1, SHAPE), step_noise(11, 1, 1, 1, SHAPE))
    assert not torch.equal(initial_noise(1, 23, SHAPE), initial_noise(12, 3, SHAPE))


def test_large_seeds_of_comfyui_are_taken():
    assert step_noise(2**64 - 1, 0, 0, 0, SHAPE).isfinite().all()


def test_noise_is_standard_normal_fp32_on_the_cpu():
    noise = torch.stack([step_noise(5, p, m, k, (16, 8, 8)) for p in range(3) for m in range(3) for k in range(3)])
    assert noise.dtype == torch.float32 and noise.device.type == "cpu"
    assert noise.mean().abs() < 0.02 and (noise.std() - 1).abs() < 0.02


def test_the_first_values_are_those_they_have_always_been():
    """A change here would make every recorded seed mean other pictures."""
    assert initial_noise(0, 0, SHAPE).flatten()[:3].tolist() == pytest.approx([-0.2155655, -0.5195477, -0.6651400], abs=1e-6)
    assert step_noise(0, 0, 0, 0, SHAPE).flatten()[:3].tolist() == pytest.approx([1.2041779, -0.3521512, -0.7392682], abs=1e-6)
    assert step_noise(123, 4, 5, 6, SHAPE).flatten()[:3].tolist() == pytest.approx([-0.3702079, 1.0134338, 2.0200768], abs=1e-6)
