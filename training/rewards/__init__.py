"""Rewards by name. The demo's measure is imported only when its reward is asked for."""

from collections.abc import Callable
from typing import Any

from ..policy import Reward
from . import pixels


def _placement() -> Reward:
    from .placement import Placement

    return Placement()


REWARDS: dict[str, Callable[..., Reward]] = {
    "placement": _placement,
    "warmth": pixels.warmth,
    "contrast": pixels.contrast,
    "compressibility": pixels.compressibility,
}


def make_reward(spec: dict[str, Any]) -> Reward:
    """The reward that a spec {"reward": name, ...options} describes."""
    options = dict(spec)
    name = options.pop("reward", None)
    if not isinstance(name, str) or name not in REWARDS:
        raise ValueError(f"unknown reward {name!r}; known: {', '.join(REWARDS)}")
    try:
        return REWARDS[name](**options)
    except TypeError as error:
        raise ValueError(f"reward {name!r}: {error}") from None
