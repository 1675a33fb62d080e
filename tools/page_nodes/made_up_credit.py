"""A node for ComfyUI that makes up credit of any size: for looking at the Credit Visualizer and for measuring it, not for artists.

ComfyUI finds it where this folder is named as a custom_nodes folder in its extra model paths.
"""

import importlib.util
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from server import PromptServer

ROOT = Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("_stepwise_bind", ROOT / "training" / "bind.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.bind()

from stepwise_grpo.training.core.advantages import advantages  # noqa: E402
from stepwise_grpo.training.core.schedule import Schedule  # noqa: E402
from stepwise_grpo.training.trajectory import Credit  # noqa: E402

TILE = 96  # px, as the real previews


class MadeUpCredit:
    CATEGORY, FUNCTION, RETURN_TYPES = "Stepwise GRPO/tests", "make", ("STEPWISE_GRPO_CREDIT",)

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802 - ComfyUI's name
        number = lambda default, least: ("INT", {"default": default, "min": least, "max": 1000})
        return {
            "required": {
                "prompts": number(3, 1),
                "members": number(8, 2),
                "steps": number(10, 2),
                "made_up_seed": number(0, 0),
                "scheme": ("STRING", {"default": "centred"}),
                "text": ("STRING", {"default": "", "multiline": True}),
            }
        }

    def make(self, prompts: int, members: int, steps: int, made_up_seed: int, scheme: str, text: str):
        return (made_up(prompts, members, steps, made_up_seed, scheme, text),)


def made_up(prompts: int, members: int, steps: int, seed: int, scheme: str, text: str) -> Credit:
    """Rewards that move much in the first steps and little later, and discs that come out of noise at another place for each row."""
    random = torch.Generator().manual_seed(seed)
    schedule, rows = Schedule(tuple(1 - k / steps for k in range(steps + 1)), "flow", 0.7), prompts * members
    size = torch.linspace(1, 0.1, steps)[:, None] ** 1.5 * 1.2 / steps**0.5
    gains = size * (torch.randn(steps, rows, generator=random) * 0.5 + 0.12)
    start = (0.45 + 0.1 * torch.rand(prompts, generator=random)).repeat_interleave(members)
    rewards = torch.cat([start[None], start + gains.cumsum(0)])
    rewards[:] = rewards.clamp(0, 1)
    looked = not scheme.startswith("uniform")
    if not looked:
        rewards[:-1] = float("nan")
    found = advantages(scheme, rewards.diff(dim=0), rewards[-1], schedule.stochastic, schedule.weights(), members)
    texts = tuple(text or f"a big red disc somewhere, prompt {i + 1}" for i in range(prompts))
    pictures = discs(torch.tensor(schedule.times), rows, random)
    return Credit(rewards, rewards.diff(dim=0), found.values, schedule, members, texts, scheme, {"reward": "placement"}, found.zero_variance_groups, pictures, 0, {})


def discs(times: torch.Tensor, rows: int, random: torch.Generator) -> torch.Tensor:
    """(K + 1, rows, TILE, TILE, 3): blurred noise that becomes a disc."""
    line = torch.linspace(-1, 1, TILE)
    places, colours = torch.rand(rows, 2, generator=random) - 0.5, torch.rand(rows, 3, generator=random) * 0.8
    away = ((line[None, None, :] - places[:, :1, None]) ** 2 + (line[None, :, None] - places[:, 1:, None]) ** 2).sqrt()
    inside = ((0.42 - away) * 40).clamp(0, 1)[..., None]
    clean = inside * colours[:, None, None] + (1 - inside) * 0.92
    noise = F.interpolate(torch.rand(rows, 3, 12, 12, generator=random), size=(TILE, TILE), mode="bicubic").clamp(0, 1).movedim(1, -1)
    return torch.stack([(1 - t) * clean + t * noise for t in times.tolist()])


def say_when_sent(server) -> None:
    """From now on each "executed" message of this server carries the time it was sent, in seconds since 1970."""
    send = server.send_sync

    def timed(event, data, sid=None):
        send(event, {**data, "sent_at": time.time()} if event == "executed" else data, sid)

    server.send_sync = timed


say_when_sent(PromptServer.instance)
NODE_CLASS_MAPPINGS = {"StepwiseGRPO_MadeUpCredit": MadeUpCredit}
NODE_DISPLAY_NAME_MAPPINGS = {"StepwiseGRPO_MadeUpCredit": "Made-up Credit (tests)"}
