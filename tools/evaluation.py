"""The demo's held-out pictures through ComfyUI's stock nodes, and what they are worth."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .server import ComfyServer

STEPS, CFG = 10, 1.0


@dataclass(frozen=True)
class Evaluation:
    """``images`` (N, H, W, 3) in [0, 1]; mean ``reward``; share of pictures with ``shape_ok`` and ``place`` right."""

    images: Tensor
    reward: float
    shape_ok: float
    place: float


def evaluate(server: ComfyServer, held_out: Sequence[tuple[str, int]], lora_name: str | None) -> Evaluation:
    """Sample every (prompt, seed) by plain ODE with the stock KSampler, with the LoRA from the stock loader or without."""
    from ..demo.measure import measure
    from ..training.rewards import make_reward

    outputs = server.run(graph(held_out, lora_name))
    images = torch.stack([_picture(server.picture(outputs[f"save{i}"]["images"][0])) for i in range(len(held_out))])
    texts = [text for text, _ in held_out]
    seen = measure(images, texts)
    reward = make_reward({"reward": "placement"}).score(images, texts)
    return Evaluation(images, reward.mean().item(), seen["shape_ok"].float().mean().item(), seen["place"].float().mean().item())


def graph(held_out: Sequence[tuple[str, int]], lora_name: str | None) -> dict[str, Any]:
    """API form: one KSampler a held-out pair, all behind one model."""
    nodes: dict[str, Any] = {
        "demo": {"class_type": "StepwiseGRPO_DemoModel", "inputs": {}},
        "negative": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["demo", 1], "text": ""}},
        "empty": {"class_type": "EmptySD3LatentImage", "inputs": {"width": 128, "height": 128, "batch_size": 1}},
    }
    model = ["demo", 0]
    if lora_name is not None:
        nodes["lora"] = {"class_type": "LoraLoaderModelOnly", "inputs": {"model": model, "lora_name": lora_name, "strength_model": 1.0}}
        model = ["lora", 0]
    for i, (text, seed) in enumerate(held_out):
        sampler = {"model": model, "positive": [f"text{i}", 0], "negative": ["negative", 0], "latent_image": ["empty", 0]}
        sampler |= {"seed": seed, "steps": STEPS, "cfg": CFG, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
        nodes[f"text{i}"] = {"class_type": "CLIPTextEncode", "inputs": {"clip": ["demo", 1], "text": text}}
        nodes[f"sample{i}"] = {"class_type": "KSampler", "inputs": sampler}
        nodes[f"decode{i}"] = {"class_type": "VAEDecode", "inputs": {"samples": [f"sample{i}", 0], "vae": ["demo", 2]}}
        nodes[f"save{i}"] = {"class_type": "PreviewImage", "inputs": {"images": [f"decode{i}", 0]}}
    return nodes


def _picture(png: bytes) -> Tensor:
    """(H, W, 3) float32 in [0, 1]."""
    import numpy
    from PIL import Image

    return torch.from_numpy(numpy.array(Image.open(io.BytesIO(png)).convert("RGB"))).float() / 255
