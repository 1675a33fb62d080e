"""Rewards by name. Each module is imported only when its reward is asked for."""

from collections.abc import Callable
from typing import Any

from ..policy import Reward


def _placement() -> Reward:
    from .placement import Placement

    return Placement()


def _pixels(name: str) -> Callable[..., Reward]:
    def make(**options: Any) -> Reward:
        from . import pixels

        return getattr(pixels, name)(**options)

    return make


REWARDS: dict[str, Callable[..., Reward]] = {
    "placement": _placement,
    "warmth": _pixels("warmth"),
    "contrast": _pixels("contrast"),
    "compressibility": _pixels("compressibility"),
}


def make_reward(spec: dict[str, Any]) -> Reward:
    """The reward that a spec {"reward": name, ...options} describes."""
    options = dict(spec)
    name = options.pop("reward", None)
    if name not in REWARDS:
        raise ValueError(f"unknown reward {name!r}; known: {', '.join(REWARDS)}")
    return REWARDS[name](**options)
