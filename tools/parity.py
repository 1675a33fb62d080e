"""Whether a version file means in ComfyUI's stock loader what it meant in training."""

from pathlib import Path

import torch


def lora_parity(path: Path) -> tuple[float, int, int]:
    """Largest |difference| of the demo's velocity, trainer against stock loader; layers matched by ComfyUI, and of how many."""
    import comfy.sd
    import comfy.utils

    from ..demo.comfy_model import load_demo_model
    from ..training import lora
    from ..training.backends.comfy import ModelVelocity, ready
    from .local import demo_policy, encode, training_prompts

    policy, data = demo_policy(), path.read_bytes()
    policy.set_weights(lora.load(data))
    stock, _ = comfy.sd.load_lora_for_models(load_demo_model(), None, comfy.utils.load_torch_file(str(path)), 1.0, 0.0)
    prompts = [encode(text) for text in training_prompts()[:8]]
    generator = torch.Generator().manual_seed(0)
    x, t = torch.randn(8, 16, 16, 16, generator=generator), torch.linspace(1.0, 0.1, 8)
    rows, shape = torch.arange(8), [8, 16, 16, 16]
    with torch.no_grad():
        with policy.prompts(prompts, encode(""), 1.0, shape):
            trained = policy.velocity(x, t, rows)
        with ready(stock, shape):
            loaded = ModelVelocity(stock, prompts, encode(""), 1.0)(x, t, rows)
    matched, total = policy.matched_keys(comfy.utils.load_torch_file(str(path)))
    return (trained - loaded).abs().max().item(), matched, total
