"""Pictures from the shipped files through ComfyUI's own sampling, as the stock nodes make them."""

import comfy.sample
import torch

from ..captions import SIDE
from ..codec import CHANNELS, PATCH
from ..comfy_model import load_demo_clip, load_demo_model, load_demo_vae

ROWS = 32  # pictures sampled at once


class Studio:
    """The three demo objects and the stock KSampler's call."""

    def __init__(self):
        self.model, self.clip, self.vae = load_demo_model(), load_demo_clip(), load_demo_vae()

    def pictures(self, prompts: list[str], noise: torch.Tensor, cfg: float = 1.0, steps: int = 10) -> torch.Tensor:
        """(N, 128, 128, 3) for N prompts and their own noise (N, 16, 16, 16): Euler, simple scheduler."""
        groups = [slice(i, i + ROWS) for i in range(0, len(prompts), ROWS)]
        return torch.cat([self._group(prompts[rows], noise[rows], cfg, steps) for rows in groups])

    def _group(self, prompts: list[str], noise: torch.Tensor, cfg: float, steps: int) -> torch.Tensor:
        encoded = [self.clip.encode_from_tokens_scheduled(self.clip.tokenize(prompt))[0] for prompt in prompts]
        cond = torch.cat([one[0] for one in encoded])
        pooled = torch.cat([one[1]["pooled_output"] for one in encoded])
        positive = [[cond, {"pooled_output": pooled}]]
        negative = [[torch.zeros_like(cond), {"pooled_output": torch.zeros_like(pooled)}]]
        samples = comfy.sample.sample(
            self.model, noise, steps, cfg, "euler", "simple", positive, negative, torch.zeros_like(noise),
            disable_pbar=True, seed=0,
        )  # fmt: skip
        return self.vae.decode(samples)


def seeded_noise(seeds: list[int]) -> torch.Tensor:
    """(N, 16, 16, 16), each row the noise the stock KSampler draws for a single picture of that seed."""
    side = SIDE // PATCH
    rows = [torch.randn(1, CHANNELS, side, side, generator=torch.manual_seed(seed)) for seed in seeds]
    return torch.cat(rows)
