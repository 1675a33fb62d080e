"""The optimiser by name: its state goes through a file to the bit, follows its weights, and a missing package is said with the remedy."""

import sys

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.analytic import AnalyticPolicy, packed, plan
from stepwise_grpo.training import graph_run
from stepwise_grpo.training.config import Job, to_json
from stepwise_grpo.training.graph_run import GraphRun, open_run
from stepwise_grpo.training.job import RunFolder
from stepwise_grpo.training.optimiser import class_of, follow_weights, make_optimiser, set_state, state_tensors

KINDS = ["adamw", "adamw8bit"]


class Weights:
    """A policy as far as an optimiser needs it; large enough for averages in 8 bits."""

    def __init__(self) -> None:
        self._parameters = [torch.nn.Parameter(torch.zeros(128, 64)), torch.nn.Parameter(torch.ones(7))]

    def parameters(self):
        return self._parameters


def step(weights: Weights, optimiser: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in weights.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimiser.step()


def available(kind: str) -> None:
    if kind == "adamw8bit":
        pytest.importorskip("bitsandbytes", reason="adamw8bit needs bitsandbytes, which is the artist's choice")


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_goes_through_a_file_to_the_bit(kind):
    available(kind)
    weights = Weights()
    optimiser = make_optimiser(weights, plan().update, kind)
    for seed in range(3):
        step(weights, optimiser, seed)
    data = safetensors.torch.save(state_tensors(optimiser))
    again = Weights()
    for parameter, value in zip(again.parameters(), weights.parameters()):
        parameter.data.copy_(value)
    other = make_optimiser(again, plan().update, kind)
    set_state(other, safetensors.torch.load(data))
    assert safetensors.torch.save(state_tensors(other)) == data
    for seed in (3, 4):
        step(weights, optimiser, seed)
        step(again, other, seed)
    assert all(torch.equal(a, b) for a, b in zip(weights.parameters(), again.parameters()))
    fresh = make_optimiser(again, plan().update, kind)
    step(again, fresh, 5)
    step(weights, optimiser, 5)
    assert not torch.equal(again.parameters()[0], weights.parameters()[0])  # without the state it would be another step


def test_eight_bits_are_eight_bits():
    available("adamw8bit")
    weights = Weights()
    optimiser = make_optimiser(weights, plan().update, "adamw8bit")
    step(weights, optimiser, 0)
    assert state_tensors(optimiser)["0/state1"].dtype == torch.uint8


def test_averages_follow_their_weights_and_single_numbers_stay():
    weight, count = torch.nn.Parameter(torch.zeros(2, device="meta")), torch.tensor(3.0)
    optimiser = torch.optim.AdamW([weight])
    optimiser.state[weight] = {"step": count, "exp_avg": torch.zeros(2)}
    follow_weights(optimiser)
    assert optimiser.state[weight]["exp_avg"].is_meta and optimiser.state[weight]["step"] is count


def test_a_missing_package_is_named_with_the_remedy_before_anything_is_done(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ValueError, match=r"'adamw8bit' needs the package bitsandbytes.*pip install bitsandbytes.*or set optimiser to adamw"):
        class_of("adamw8bit")
    with pytest.raises(ValueError, match="bitsandbytes"):
        folder = RunFolder(tmp_path, "r")
        folder.agree_on_job(to_json(Job(base={"kind": "analytic"}, optimiser="adamw8bit")))
        open_run(folder, lambda job: pytest.fail("a model was loaded"))
    assert class_of("adamw") is torch.optim.AdamW


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_two_processes_equals_one_to_the_bit(kind, tmp_path):
    available(kind)
    job = Job(base={"kind": "analytic"}, rank=400, alpha=4.0, optimiser=kind)  # above 4096 numbers in a tensor, below which 8 bits are not used
    folders = [RunFolder(tmp_path / name, "r") for name in ("one", "two")]
    straight, first = (GraphRun(folder, job, AnalyticPolicy(job)) for folder in folders)
    for seed in range(3):
        data = packed(AnalyticPolicy(job), plan(updates=2), seed)
        if seed == 2:
            first = GraphRun(folders[1], job, AnalyticPolicy(job))
        for run in (straight, first):
            run.folder.queue(data)
            (path,) = run.folder.waiting()
            run.train(path, path.stem.split("-")[-1])
            path.unlink()
    one, two = ((folder.state / "v000003.safetensors").read_bytes() for folder in folders)
    assert one == two
    assert (kind == "adamw8bit") == any(name.endswith("state1") for name in safetensors.torch.load(one))
    assert graph_run.STALENESS_LIMIT == 2  # all three were made with version 0
