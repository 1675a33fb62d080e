"""What each step earned: the difference of the rewards before and after it."""

from torch import Tensor

from .checks import need


def gains(rewards: Tensor) -> Tensor:
    """g_k = r(after step k) - r(before step k), (K, B) from rewards (K + 1, B); they telescope to r_K - r_0."""
    need(rewards.dim() == 2 and len(rewards) >= 2, f"rewards need shape (K + 1, B); got {tuple(rewards.shape)}")
    return rewards[1:] - rewards[:-1]
