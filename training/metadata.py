"""What a version file says about itself to LoRA managers: the keys of modelspec and those of kohya's trainer. Standard library only.

No date: the same weights must give the same bytes.
"""

# Sources: modelspec 1.0.1 (github.com/Stability-AI/ModelSpec) and kohya-ss/sd-scripts, whose identifiers are taken where
# it has one. ComfyUI-Lora-Manager and others read the base model from ss_base_model_version, ss_sd_model_name or
# modelspec.architecture, prompts from ss_tag_frequency, and the picture from a .png of the same name.

import json
from pathlib import Path
from typing import Any

from .config import Job, to_json

# ComfyUI's class: the architecture's identifier, the base model as kohya's trainers write it
FAMILIES = {
    "SD3": ("stable-diffusion-3", "sd3"),
    "Flux": ("flux-1-dev", "flux1"),
    "Flux2": ("flux-2", "flux2"),
    "Chroma": ("chroma", "chroma"),
    "AuraFlow": ("auraflow-v1", "auraflow"),
    "Lumina2": ("lumina-2", "lumina2"),
    "ZImage": ("z-image", "zimage"),
    "QwenImage": ("qwen-image", "qwen_image"),
    "HiDream": ("hidream-i1", "hidream"),
    "WAN21": ("wan2.1", "wan2.1"),
    "HunyuanVideo": ("hunyuan-video", "hunyuan_video"),
}
PROMPTS = 32  # at most so many of the run's prompts, each with so many letters
LETTERS = 200


def metadata(job: Job, about: dict[str, Any]) -> dict[str, str]:
    """The metadata of a version file. ``about``: {run, version, prompts, model: ComfyUI's class of the base model, ema}; all may be missing."""
    run, version, model = about.get("run", ""), about.get("version", 0), about.get("model", "")
    base = Path(job.base.get("name", job.base["kind"]).replace("\\", "/")).name
    architecture, family = FAMILIES.get(model, (model or "unknown", model or "unknown"))
    return {
        "stepwise_grpo": json.dumps({**about, "job": to_json(job)}, sort_keys=True),
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{architecture}/lora",
        "modelspec.implementation": "ComfyUI",
        "modelspec.title": f"{run} v{version}" + (" (averaged)" if about.get("ema") else ""),
        "modelspec.description": f"Version {version} of the run {run}, a LoRA for {base} trained by reinforcement learning (Stepwise-Flow-GRPO).",
        "modelspec.usage_hint": "Strength 1 is what was trained. It has no trigger word.",
        "modelspec.tags": "grpo, reinforcement learning",
        "ss_base_model_version": family,
        "ss_sd_model_name": base,
        "ss_output_name": f"{run}_v{version:06d}",
        "ss_network_module": "stepwise_grpo",
        "ss_network_dim": str(job.rank),
        "ss_network_alpha": str(job.alpha),
        "ss_tag_frequency": json.dumps({"prompts": {text[:LETTERS]: 1 for text in about.get("prompts", [])[:PROMPTS] if text}}, ensure_ascii=False),
    }
