"""The configuration file of headless training as validated data. Standard library only."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config import Job, PreviewSettings, UpdateSettings, from_json
from .job import check_run_name

PRECISIONS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, kw_only=True)
class HeadlessSettings:
    """One run. Paths may be relative to the configuration file."""

    model: str
    """Local folder of a diffusers pipeline, or one .safetensors file of its network."""
    output: str
    """Where the run goes: ComfyUI's output folder, if ComfyUI shall watch it and load its versions."""
    run: str
    """Name of the run."""
    prompts: str
    """Text file, one prompt a line."""
    reward: dict[str, Any]
    """Spec of the reward: {"reward": its name, and its options}."""
    components: str = ""
    """Local folder of a pipeline with the other parts, where ``model`` is a single file."""
    architecture: str = ""
    """sd3, flux, qwen_image, z_image or wan; empty = as the pipeline's folder says."""
    precision: str = "bfloat16"
    """Number format of the base model; the LoRA is always float32."""
    negative: str = ""
    """Negative prompt; it counts where ``cfg`` is not 1."""
    iterations: int = 100
    """The run ends with this version."""
    prompts_per_iteration: int = 4
    """Different prompts in an iteration; at least one for each process."""
    group_size: int = 8
    """Pictures of each prompt."""
    steps: int = 10
    """Denoising steps."""
    shift: float | None = None
    """Shift of the time grid towards noise; null = what the model's own scheduler does."""
    cfg: float = 1.0
    """Guidance by the negative prompt: v_negative + cfg (v_positive - v_negative); 1 = off."""
    guidance: float = 3.5
    """What a guidance-distilled network (Flux.1 dev) is told."""
    width: int = 512
    """Of the pictures, in pixels."""
    height: int = 512
    """Of the pictures, in pixels."""
    frames: int = 1
    """Of a video (Wan); the reward sees the first one."""
    law: str = "ddim"
    """Law of the stochastic steps."""
    eta: float = 0.7
    """Strength of the noise of the stochastic steps; its range depends on the law."""
    seed: int = 0
    """Of prompts, noise and split; the seed of the LoRA's start is ``lora.seed``."""
    lora: dict[str, Any] = field(default_factory=dict)
    """Settings of ``Job`` but base and start: targets, pattern, rank, alpha, seed, optimiser."""
    update: dict[str, Any] = field(default_factory=dict)
    """Settings of ``UpdateSettings``."""
    preview: dict[str, Any] = field(default_factory=dict)
    """Settings of ``PreviewSettings``: scheme, substeps and so on."""

    def __post_init__(self) -> None:
        check_run_name(self.run)
        for name, build in {"lora": lambda: self.job({"kind": "diffusers"}), "update": self.update_settings, "preview": self.preview_settings}.items():
            try:
                build()
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}: {error}") from None
        least = {"iterations": 1, "prompts_per_iteration": 1, "group_size": 2, "steps": 2, "width": 1, "height": 1, "frames": 1}
        for name, value in least.items():
            if vars(self)[name] < value:
                raise ValueError(f"{name} must be at least {value}; got {vars(self)[name]}")
        if self.shift is not None and self.shift <= 0:
            raise ValueError(f"shift must be above 0 (or null for the model's own); got {self.shift:g}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}")

    def job(self, base: dict[str, Any]) -> Job:
        for name, instead in {"base": "model says what is trained", "start": "a headless run starts from the base model"}.items():
            if name in self.lora:
                raise ValueError(f"there is no setting {name!r} here: {instead}")
        return from_json(Job, {**self.lora, "base": base})

    def update_settings(self) -> UpdateSettings:
        return from_json(UpdateSettings, self.update)

    def preview_settings(self) -> PreviewSettings:
        return from_json(PreviewSettings, self.preview)


def read_settings(path: Path) -> HeadlessSettings:
    """The settings of a configuration file; ``ValueError`` with one sentence where something is wrong with it."""
    if not path.is_file():
        raise ValueError(f"there is no configuration file {path}")
    try:
        data = json.loads(path.read_text("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} must hold one object in braces, such as the example of docs/headless.md")
    missing = [each for each in ("model", "output", "run", "prompts", "reward") if each not in data]
    if missing:
        raise ValueError(f"{path} does not say {', '.join(missing)}")
    return from_json(HeadlessSettings, data)
