"""Settings as frozen, validated data with a JSON round trip. Unknown keys are errors; every field states its unit or range."""

import dataclasses
import difflib
import math
from dataclasses import dataclass
from typing import Any

_KINDS: dict[Any, tuple[tuple, str]] = {
    str: ((str,), "a text"),
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    float | None: ((int, float, type(None)), "a number or null"),
    dict[str, Any]: ((dict,), "an object in braces"),
    dict[str, Any] | None: ((dict, type(None)), "an object in braces or null"),
}
"""What JSON may give for a field, by the field's type."""


def to_json(settings: Any) -> dict[str, Any]:
    """A plain dict of a settings object."""
    return dataclasses.asdict(settings)


def from_json(kind: type, data: dict[str, Any]) -> Any:
    """A settings object of class ``kind`` from a dict; a key it does not have is an error with a suggestion."""
    names = [f.name for f in dataclasses.fields(kind)]
    for key in data:
        if key not in names:
            close = difflib.get_close_matches(key, names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"
            raise ValueError(f"{kind.__name__} has no setting {key!r}{hint}")
    for field in dataclasses.fields(kind):
        if field.name in data:
            _check_type(field.name, field.type, data[field.name])
    return kind(**data)


def _check_type(name: str, wanted: Any, value: Any) -> None:
    """``ValueError`` where JSON gave another kind of value; an int passes for a float."""
    kinds, words = _KINDS[wanted]
    if not isinstance(value, kinds) or (isinstance(value, bool) and wanted is not bool):
        raise ValueError(f"{name} must be {words}; got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number; got {value!r}")


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


STALENESS_LIMIT = 2  # versions that an experience may be behind the run
OPTIMISERS = ("adamw", "adamw8bit")
CHECKPOINTING = ("auto", "on", "off")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a run trains: fixed by the first experience of a run, the same for its whole life."""

    base: dict[str, Any]
    """{"kind": "demo"}, or a file and its precision as ``base.describe`` gives them; "loras" lists the LoRAs on it below the trained one."""
    targets: str = "attention"
    """Which layers get a LoRA: a preset of training/lora.py."""
    pattern: str = ""
    """Regular expression for whole layer paths that takes the place of the preset; empty = the preset."""
    rank: int = 16
    """Rank r of every LoRA."""
    alpha: float = 32.0
    """LoRA scale: the update of a weight is alpha / rank * B A."""
    seed: int = 0
    """Seed of the LoRA's initial A."""
    start: dict[str, Any] | None = None
    """The LoRA file that version 0 is, by name, size and digest; None = version 0 is the base model."""
    optimiser: str = "adamw"
    """A name of OPTIMISERS. Its state on disk has its own form, so a run keeps it."""

    def __post_init__(self) -> None:
        _need(isinstance(self.base, dict) and bool(self.base.get("kind")), "base needs a kind")
        _need(1 <= self.rank <= 1024, f"rank must lie between 1 and 1024; got {self.rank}")
        _need(self.alpha > 0 and math.isfinite(self.alpha), f"alpha must be above 0; got {self.alpha:g}")
        _need(self.optimiser in OPTIMISERS, f"optimiser must be one of {', '.join(OPTIMISERS)}; got {self.optimiser!r}")


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """How one experience changes the LoRA. Travels with each experience and applies to it alone."""

    learning_rate: float = 1e-3
    """AdamW's step size."""
    clip: float = 1e-3
    """Clip range of the ratio of mean densities: 1e-3 for small latents, 1e-4 for 512 px."""
    beta: float = 0.0
    """Weight of the KL to the base model; 0 = off. Flow-GRPO's published value divided by the number of steps."""
    updates: int = 2
    """Optimiser steps per experience; the members are split among them."""
    weight_decay: float = 1e-4
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Gradients with a larger norm are scaled down to it."""
    ema: float = 0.0
    """Decay of the moving average saved beside each version; 0 = off."""
    rows_per_call: int = 0
    """At most this many states go through the network at once; 0 = as many as the memory estimate says will fit."""
    checkpointing: str = "auto"
    """Compute transformer blocks again in backward instead of keeping their activations: on, off, or auto = for every model but the small demo's."""
    share_gpu: bool = True
    """Keep the trainer's weights in RAM while it waits, so that the graph has the graphics memory for itself."""

    def __post_init__(self) -> None:
        _need(0 < self.learning_rate <= 1, f"learning_rate must lie in (0, 1]; got {self.learning_rate:g}")
        _need(0 < self.clip < 1, f"clip must lie in (0, 1); got {self.clip:g}")
        _need(self.beta >= 0 and math.isfinite(self.beta), f"beta must be at least 0; got {self.beta:g}")
        _need(1 <= self.updates <= 64, f"updates must lie between 1 and 64; got {self.updates}")
        _need(0 <= self.weight_decay < 1, f"weight_decay must lie in [0, 1); got {self.weight_decay:g}")
        _need(self.max_grad_norm > 0, f"max_grad_norm must be above 0; got {self.max_grad_norm:g}")
        _need(0 <= self.ema < 1, f"ema must lie in [0, 1); got {self.ema:g}")
        _need(self.rows_per_call >= 0, f"rows_per_call must be at least 0 (0 = automatic); got {self.rows_per_call}")
        _need(self.checkpointing in CHECKPOINTING, f"checkpointing must be one of {', '.join(CHECKPOINTING)}; got {self.checkpointing!r}")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Which policy made a trajectory: the run and version of the LoRA that Live LoRA put on the model."""

    run: str = ""
    """Run name; empty = no Live LoRA, the base model."""
    version: int = 0
    """0 = the base model."""
    digest: str = ""
    """sha256 of the version's file; empty for version 0."""
    strength: float = 1.0
    """Strength at which the LoRA was applied; only 1 can be trained."""
    loras: int = 0
    """How many Live LoRA nodes the model went through; more than one cannot be trained."""
    ema: bool = False
    """Whether the averaged weights were applied; they are for viewing and cannot be trained from."""
    start: dict[str, Any] | None = None
    """The LoRA file that Live LoRA takes for version 0, as in ``Job.start``."""


@dataclass(frozen=True, kw_only=True)
class PreviewSettings:
    """How states become clean estimates and credit."""

    scheme: str = "centred"
    """A scheme of core/advantages.py."""
    substeps: int = 2
    """Euler substeps T' from a state to its clean estimate; 1 reuses the sampler's velocity and costs no network call."""
    by_time: bool = False
    """Use ceil(substeps * t) substeps: fewer where little noise is left."""
    spacing: float = 1.0
    """Shift of the substeps; 3 takes more of them at high noise."""
    rows_per_call: int = 64
    """At most this many states go through the network, and pictures through the decoder, at once."""

    def __post_init__(self) -> None:
        _need(1 <= self.substeps <= 64, f"substeps must lie between 1 and 64; got {self.substeps}")
        _need(self.spacing >= 1 and math.isfinite(self.spacing), f"spacing must be at least 1; got {self.spacing:g}")
        _need(self.rows_per_call >= 1, f"rows_per_call must be at least 1; got {self.rows_per_call}")
