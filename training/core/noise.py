"""Noise that depends on what it is for and on nothing else: bit-identical under any split of the batch.

Each draw has a generator of its own on the CPU, seeded by a hash of (seed, prompt, member, step). The initial noise of a
prompt has a stream of its own, so that it never equals a step's noise (a trap in samplers that reuse the seed).
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def _draw(shape: Sequence[int], *key: object) -> Tensor:
    digest = hashlib.sha256("/".join(str(part) for part in key).encode("utf-8")).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "little") & (2**63 - 1))
    return torch.randn(*shape, generator=generator, dtype=torch.float32)


def initial_noise(seed: int, prompt: int, shape: Sequence[int]) -> Tensor:
    """x at t = 1 of one prompt, shared by all members of its group. ``shape`` is one latent without the batch."""
    return _draw(shape, "initial", seed, prompt)


def step_noise(seed: int, prompt: int, member: int, step: int, shape: Sequence[int]) -> Tensor:
    """The standard normal that member ``member`` of prompt ``prompt`` adds in step ``step``."""
    return _draw(shape, "step", seed, prompt, member, step)
