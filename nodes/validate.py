"""What ComfyUI asks before it runs a graph: whether a widget's value can be used. A linked input is None then and passes."""

from ..training.config import Origin
from ..training.core.transitions import resolve_eta
from ..training.job import check_run_name
from ..training.lora import check_pattern
from .sockets import AUTO


def law_and_eta(law: str | None, eta: float | None) -> bool | str:
    """True, or why this eta does not fit this law. With "auto" the law is not known yet; the sampler checks then."""
    try:
        return law in (None, AUTO) or eta is None or resolve_eta(law, eta) >= 0
    except ValueError as error:
        return str(error)


def run(name: str | None, pattern: str | None = None) -> bool | str:
    """True, or why this is no name for a run or no pattern for its layers."""
    try:
        check_pattern(pattern or "")
        return name is None or bool(check_run_name(name))
    except ValueError as error:
        return str(error)


def as_trained(origin: Origin, purpose: str) -> None:
    """``ValueError`` with the remedy where the model carries the run's LoRA otherwise than it was trained."""
    if origin.loras > 1:
        raise ValueError("the model went through two Live LoRA nodes; keep one")
    if origin.ema:
        raise ValueError(f"use_ema is on in Live LoRA; the averaged weights are for looking: turn it off for {purpose}")
    if origin.strength != 1:
        raise ValueError(f"strength is {origin.strength:g} in Live LoRA; set it to 1 for {purpose}")
