"""Trains the flow model on drawn pictures: velocity matching, Muon for the blocks' matrices, AdamW for the rest."""

import copy
import time
from dataclasses import dataclass

import torch
from torch import nn

from ..codec import Codec
from .data import Batch, Batches
from .network import velocity

COLOUR_WEIGHT = 3.0  # of the loss in the three mean-colour channels


@dataclass(frozen=True)
class Plan:
    """One stage of training."""

    seconds: float
    batch: int = 64
    muon_lr: float = 3e-3  # matched to AdamW's scale
    adam_lr: float = 1e-3
    warm_up: int = 100  # steps
    ema: float = 0.998
    seed: int = 0


class Trainer:
    """Optimises one network on a wall-clock schedule and keeps its moving average."""

    def __init__(self, net: nn.Module, plan: Plan):
        self.net, self.plan, self.average = net, plan, copy.deepcopy(net).requires_grad_(False)
        matrix = {p for name, p in net.named_parameters() if "joint_blocks" in name and p.ndim == 2}
        rest = [p for p in net.parameters() if p not in matrix]
        muon = torch.optim.Muon(
            list(matrix), lr=plan.muon_lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        )
        self.optimisers = (muon, torch.optim.AdamW(rest, lr=plan.adam_lr, betas=(0.9, 0.98), weight_decay=0.0))
        self.step = 0

    def update(self, loss: torch.Tensor, spent: float) -> None:
        """One optimiser step; spent in [0, 1] is the share of the stage's time that has passed."""
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        factor = min(1.0, (self.step + 1) / self.plan.warm_up) * (1 - spent)
        for optimiser, lr in zip(self.optimisers, (self.plan.muon_lr, self.plan.adam_lr)):
            optimiser.param_groups[0]["lr"] = lr * factor
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        decay = min(self.plan.ema, self.step / (self.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.net.parameters()), 1 - decay)


def flow_loss(net: nn.Module, batch: Batch) -> torch.Tensor:
    """Weighted mean squared error of the velocity at x_t = (1 - t) x0 + t x1."""
    return velocity_loss(net, batch, batch.x1 - batch.x0)


def velocity_loss(net: nn.Module, batch: Batch, target: torch.Tensor) -> torch.Tensor:
    """Error against a given target (B, 16, 16, 16)."""
    with torch.autocast("cpu", torch.bfloat16):
        guess = velocity(net, state(batch), batch.t, batch.cond, batch.pooled)
    error = (guess.float() - target).square().mean((0, 2, 3))
    return (COLOUR_WEIGHT * error[:3].sum() + error[3:].sum()) / (COLOUR_WEIGHT * 3 + len(error) - 3)


def state(batch: Batch) -> torch.Tensor:
    """x_t of a batch."""
    t = batch.t[:, None, None, None]
    return (1 - t) * batch.x0 + t * batch.x1


def train(net: nn.Module, codec: Codec, plan: Plan, report=print, loss=flow_loss, every: float = 60.0) -> nn.Module:
    """Train for plan.seconds; returns the moving average. report(average, text) is called about every `every` s."""
    torch.manual_seed(plan.seed)
    trainer, batches = Trainer(net, plan), Batches(codec, plan.batch)
    start = time.monotonic()
    due, running = every, 0.0
    while (passed := time.monotonic() - start) < plan.seconds:
        value = loss(net, batches.draw())
        trainer.update(value, passed / plan.seconds)
        running += (value.item() - running) * max(0.01, 1 / trainer.step)
        if passed >= due:
            report(trainer.average, f"{passed:5.0f} s, step {trainer.step}, loss {running:.4f}")
            due += every
    return trainer.average
