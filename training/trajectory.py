"""A group's path through the denoising steps, and what it earned: the data behind the trajectory and credit sockets."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .config import Origin
from .core.schedule import Schedule


@dataclass(frozen=True)
class Prompt:
    """One prompt: its text (may be empty), its index in the artist's list, its conditioning entries as ComfyUI has them."""

    text: str
    index: int
    conditioning: list


@dataclass(frozen=True)
class Trajectory:
    """P prompts x G members = B rows, prompt-major. States are fp32, in the model's latent space."""

    states: Tensor
    """(K + 1, B, ...): states[0] is the noise, states[K] the picture's latent."""
    velocities: Tensor
    """(K, B, ...): the velocity at states[k], guidance included."""
    schedule: Schedule
    prompts: tuple[Prompt, ...]
    negative: list
    cfg: float
    seed: int
    origin: Origin
    base: dict[str, Any] | None
    """The base model as in Job.base, or None when nobody told it."""
    evaluations: int
    """Rows that went through the network to make it."""
    seconds: float = 0.0
    """How long the rollout took."""
    architecture: str = ""
    """Name of the model's row in training/defaults.py."""

    @property
    def group_size(self) -> int:
        return self.states.shape[1] // len(self.prompts)

    @property
    def texts(self) -> list[str]:
        """The prompt of each row."""
        return [prompt.text for prompt in self.prompts for _ in range(self.group_size)]


@dataclass(frozen=True)
class Credit:
    """What each step of each member earned."""

    rewards: Tensor
    """(K + 1, B): reward of the clean estimate at each state; NaN where a uniform scheme did not look."""
    gains: Tensor
    """(K, B)."""
    advantages: Tensor
    """(K, B), zero outside the stochastic steps."""
    schedule: Schedule
    group_size: int
    texts: tuple[str, ...]
    """The prompt of each group."""
    scheme: str
    reward: dict[str, Any]
    """Spec of the reward."""
    zero_variance_groups: int
    thumbnails: Tensor | None
    """(K + 1, B, h, w, 3) in [0, 1]: small pictures of the clean estimates; None when there were no previews."""
    evaluations: int
    seconds: dict[str, float]
    """Time of "preview" (network), "decode" and "reward"."""
    seed: int = 0
    """Of the trajectory it belongs to."""
    picture: Tensor | None = None
    """(h, w, 3), uint8: the finished picture with the best reward, at most 512 pixels wide or high."""
