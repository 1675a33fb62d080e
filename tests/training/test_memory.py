"""Peak memory of an update row: counted exactly, estimated without numbers, and equal to what a real run takes; and a parked model.

A process' own memory says the same as the tracker: test_bench.py runs `bench memory`.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from stepwise_grpo.tests.architectures import ARCHITECTURES, detection_of
from stepwise_grpo.tests.bench import ROWS, TIMES, Bench
from stepwise_grpo.training import capacity
from stepwise_grpo.training.config import Job
from stepwise_grpo.training.optimiser import follow_weights, make_optimiser, state_tensors
from stepwise_grpo.training.update import RefusedExperience, choose_rows, update

WITHOUT_NUMBERS = [name for name in ARCHITECTURES if name != "hidream"]
a_few = pytest.mark.parametrize("bench", ["sd3", "flux", "ltxv"], indirect=True)


# counting


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_storage_counts_once_while_it_lives_and_what_was_there_before_does_not(backend, device):
    from stepwise_grpo.training.backends.memory import PeakMemory

    weight = torch.ones(100, 100, device=device, requires_grad=True)  # 40 kB that are not counted
    with PeakMemory() as memory:
        x = torch.zeros(10, 100, device=device)
        assert memory.live == 4000
        view = x.view(-1)[:5].add_(1)  # neither a view nor a change in place is new
        weight.t().detach()
        assert memory.live == 4000
        y = (x @ weight).relu()  # the product dies, relu keeps its own result
        assert memory.live == 8000 and memory.peak == 12_000
        del x
        assert memory.live == 8000  # kept by the view
        del view
        assert memory.live == 8000  # and by backward
        y.sum().backward()
        del y
        assert memory.live == 40_000  # the gradient
    torch.zeros(1000, device=device)
    assert memory.peak < 60_000 and memory.live == 40_000


def test_attention_without_content_keeps_what_a_fused_kernel_keeps(backend):
    from stepwise_grpo.training.backends.memory import peak_of

    q = torch.zeros(1, 2, 1000, 8, device="meta", requires_grad=True)
    attend = lambda x, t, rows: F.scaled_dot_product_attention(q * 1, q * 1, q * 1)
    peak = peak_of(attend, [q], torch.zeros(1), torch.zeros(1), torch.zeros(1))
    assert 4 * q.nbytes < peak < 12 * q.nbytes  # the table of 1000 x 1000 for each of two heads alone is 125 times q
    assert F.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention" and q.grad is None


# the estimate against a real run


def real_row(bench: Bench, policy: Any, cfg: float) -> int:
    from stepwise_grpo.training.backends.estimate import measure

    with policy.prompts([bench.prompts[0]], bench.negative, cfg, [2, *bench.x.shape[1:]]):
        return measure(policy.velocity, policy.parameters(), list(bench.x.shape[1:])).of(1)


def cost(bench: Bench, policy: Any, cfg: float) -> Any:
    return policy.row_cost(list(bench.x.shape[1:]), bench.prompts[0], bench.negative, cfg)


@pytest.mark.parametrize("bench", WITHOUT_NUMBERS, indirect=True)
@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("cfg", [1.0, 4.0])
def test_the_estimate_is_the_peak_of_a_real_row(bench, checkpoint, cfg):
    """But for copies of the inputs, which a CPU does not make: at these sizes the text is a large part of everything."""
    policy = bench.policy(checkpoint)
    estimated, real = cost(bench, policy, cfg), real_row(bench, policy, cfg)
    inputs = 2 * (bench.prompts[0][0][0].nbytes + bench.x[0].nbytes) * (1 if cfg == 1 else 2)
    assert not estimated.measured
    assert real * 0.98 <= estimated.of(1) <= real * 1.02 + inputs


@a_few
def test_rows_cost_what_the_estimate_says_and_checkpointing_makes_them_cheaper(bench):
    from stepwise_grpo.training.backends.memory import peak_of

    policy = bench.policy(checkpoint=True)
    estimated, kept = cost(bench, policy, 1.0), cost(bench, bench.policy(), 1.0)
    assert estimated.row < kept.row
    with policy.prompts([bench.prompts[0]], bench.negative, 1.0, [4, *bench.x.shape[1:]]):
        x = torch.randn(4, *bench.x.shape[1:])
        real = peak_of(policy.velocity, policy.parameters(), x, torch.full((4,), 0.5), torch.zeros(4, dtype=torch.long))
    inputs = 4 * 2 * (bench.prompts[0][0][0].nbytes + x[0].nbytes)
    assert real * 0.95 <= estimated.of(4) <= real * 1.05 + inputs


def test_the_twin_has_no_memory_and_leaves_the_model_as_it_was(bench):
    policy = bench.policy(checkpoint=True)
    before, blocks = bench.velocity(policy), [id(block.forward) for block in policy.patcher.model.diffusion_model.joint_blocks]
    from stepwise_grpo.training.backends.estimate import twin_of

    twin = twin_of(policy.patcher, policy._checkpointing)
    assert all(tensor.is_meta for tensor in twin.model.diffusion_model.state_dict().values())
    cost(bench, policy, 4.0)
    assert torch.equal(bench.velocity(policy), before) and not any(p.is_meta for p in policy.parameters())
    assert [id(block.forward) for block in policy.patcher.model.diffusion_model.joint_blocks] == blocks
    assert all(p.grad is None for p in policy.parameters())


@pytest.mark.parametrize("bench", ["hidream"], indirect=True)
def test_where_the_course_depends_on_numbers_one_real_row_is_measured_and_that_is_said(bench, caplog):
    policy, experience = bench.policy(), bench.experience()
    with caplog.at_level("INFO", "stepwise_grpo"), detection_of(bench.architecture):
        fit = policy.rows_that_fit(experience)
    assert "no estimate of the memory for HiDream" in caplog.text and fit.message.startswith("by one measured row")
    assert fit.rows == capacity.rows_wanted(2, 4, 2, 1)
    with bench.open(policy):  # and it can be called again
        assert policy.velocity(bench.x, TIMES, ROWS).isfinite().all()


# how many rows


def test_as_many_rows_as_the_devices_total_memory_takes(bench, monkeypatch):
    from stepwise_grpo.training.backends import room

    policy, experience = bench.policy(), bench.experience()
    row, weights = cost(bench, policy, 1.0), room.devices.module_size(policy.patcher.model)
    lora = sum(p.numel() for p in policy.parameters())
    needs = weights - 4 * lora + 16 * lora + row.of(3)
    monkeypatch.setattr(room.devices, "get_total_memory", lambda device: needs * 2)  # half of it is left to the system
    chosen, fit = choose_rows(policy, experience)
    assert fit.rows == chosen.settings.rows_per_call == 3 and fit.estimate == needs
    monkeypatch.setattr(room.devices, "get_total_memory", lambda device: (needs - row.of(3) + row.fixed) * 2)
    with pytest.raises(RefusedExperience, match="set checkpointing to on in GRPO LoRA Trainer; take the model in fp8; make the pictures smaller"):
        choose_rows(policy, experience)
    with pytest.raises(RefusedExperience, match="set cfg to 1 in Stepwise SDE Sampler"):
        choose_rows(policy, replace(experience, cfg=4.0))
    assert choose_rows(policy, replace(experience, settings=replace(experience.settings, rows_per_call=2)))[0].settings.rows_per_call == 2


def test_a_graphics_card_keeps_a_reserve_and_streams_only_with_checkpointing(bench, monkeypatch):
    from stepwise_grpo.training.backends import room

    policy = bench.policy()
    monkeypatch.setattr(room.devices, "get_total_memory", lambda device: 20 * 2**30)
    monkeypatch.setattr(room.devices, "vram_state", room.devices.VRAMState.NORMAL_VRAM)
    monkeypatch.setattr(policy.patcher, "load_device", torch.device("cuda", 0))
    assert room.room_of(policy.patcher, True).streams and not room.room_of(policy.patcher, False).streams
    assert room.room_of(policy.patcher, True).reserve == int(room.devices.minimum_inference_memory() + 2**30)
    monkeypatch.setattr(room.devices, "vram_state", room.devices.VRAMState.HIGH_VRAM)
    assert not room.room_of(policy.patcher, True).streams


def test_the_demand_counts_weights_lora_and_the_largest_block(bench):
    from stepwise_grpo.training.backends import room
    from stepwise_grpo.training.backends.estimate import RowCost

    policy = bench.policy()
    demand = room.demand_of(policy.patcher, RowCost(1, 2), policy.parameters(), "adamw")
    lora = sum(p.numel() for p in policy.parameters())
    everything = sum(tensor.nbytes for tensor in policy.patcher.model.state_dict().values())
    assert demand.weights == everything - 4 * lora and demand.lora == 16 * lora and (demand.fixed, demand.row) == (1, 2)
    blocks = policy.patcher.model.diffusion_model.joint_blocks
    assert demand.block == max(4 * sum(p.numel() for p in block.parameters()) for block in blocks)
    assert room.demand_of(policy.patcher, RowCost(1, 2), policy.parameters(), "adamw8bit").lora == 11 * lora


@pytest.mark.parametrize("memory, rows", [(0, 1), (10, 10), (1000, 64)])
def test_a_rollout_takes_the_rows_that_comfyui_says_fit(bench, memory, rows, monkeypatch):
    from stepwise_grpo.training.backends import room

    patcher = bench.patcher()
    one = int(patcher.memory_required([1, 16, 4, 6]))
    monkeypatch.setattr(room.devices, "get_total_memory", lambda device: 2 * (patcher.model_size() + memory * one + one // 2))
    assert room.rows_of_rollout(patcher, [16, 4, 6], 1.0) == rows
    assert room.rows_of_rollout(patcher, [16, 4, 6], 4.0) == max(1, min(64, memory // 2))


# checkpointing by setting, parking


def calls_of_first_block(bench: Bench, policy: Any) -> int:
    """How often one forward and backward compute the first block."""
    seen: list[int] = []
    layer = policy.patcher.model.diffusion_model.joint_blocks[0].x_block.attn.qkv
    hook = layer.register_forward_pre_hook(lambda *_: seen.append(1))
    bench.gradients(policy)
    hook.remove()
    return len(seen)


def test_checkpointing_is_decided_at_each_call(bench):
    policy = bench.policy(checkpoint=True)
    counts = []
    for setting in ("auto", "off", "on"):
        policy.set_checkpointing(setting)
        counts.append(calls_of_first_block(bench, policy))
    assert counts[0] == counts[2] == 2 * counts[1]
    plain = bench.policy(checkpoint=False)
    assert calls_of_first_block(bench, plain) == counts[1]
    plain.set_checkpointing("on")
    assert calls_of_first_block(bench, plain) == counts[0]


@pytest.mark.parametrize("base, on", [("demo", False), ("file", True)])
def test_auto_means_on_for_every_model_but_the_demos(base, on, bench):
    policy = bench.backend.open_policy(Job(base={"kind": "demo"}, rank=2) if base == "demo" else bench.job())
    policy.set_checkpointing("auto")
    assert policy._checkpointing.on == on


def test_an_updates_own_setting_counts(bench):
    policy, experience = bench.backend.open_policy(bench.job(), checkpoint=False), bench.experience()
    settings = replace(experience.settings, checkpointing="on")
    with policy.prompts(experience.conditioning, experience.negative, 1.0, [8, *bench.x.shape[1:]]):
        update(policy, make_optimiser(policy), replace(experience, settings=settings), seed=0)
    assert policy._checkpointing.on


def steps(bench: Bench, between: Any) -> tuple[Any, torch.optim.Optimizer, list[float]]:
    """Two updates, with ``between(policy, optimiser)`` between them."""
    policy, experience = bench.policy(), bench.experience()
    experience = replace(experience, settings=replace(experience.settings, rows_per_call=4))
    optimiser, norms = make_optimiser(policy), []
    policy.set_weights({name: torch.zeros_like(w) if "lora_B" in name else w for name, w in policy.weights().items()})
    for seed in (0, 1):
        with policy.prompts(experience.conditioning, experience.negative, 1.0, [4, *bench.x.shape[1:]]):
            follow_weights(optimiser)
            norms.append(update(policy, optimiser, experience, seed)["grad_norm"])
        between(policy, optimiser)
    return policy, optimiser, norms


def test_a_model_that_was_parked_goes_on_to_the_bit(bench):
    import comfy.model_management

    loaded: list[int] = []

    def park(policy: Any, optimiser: torch.optim.Optimizer) -> None:
        loaded.append(sum(entry.model is policy.patcher for entry in comfy.model_management.current_loaded_models))
        policy.unload()
        follow_weights(optimiser)
        loaded.append(sum(entry.model is policy.patcher for entry in comfy.model_management.current_loaded_models))

    kept, parked = steps(bench, lambda *_: None), steps(bench, park)
    assert loaded == [1, 0, 1, 0]
    assert kept[2] == parked[2] and kept[2][1] > 0
    assert all(torch.equal(w, parked[0].weights()[name]) for name, w in kept[0].weights().items())
    one, two = state_tensors(kept[1]), state_tensors(parked[1])
    assert one.keys() == two.keys() and len(one) == 3 * len(kept[0].parameters()) and all(torch.equal(one[key], two[key]) for key in one)
    assert torch.equal(bench.velocity(kept[0]), bench.velocity(parked[0]))


def test_on_a_cpu_parking_does_nothing(bench, monkeypatch):
    policy, seen = bench.policy(), []
    monkeypatch.setattr(policy, "unload", lambda: seen.append(1))
    policy.park()
    assert not seen
    monkeypatch.setattr(policy.patcher, "load_device", torch.device("cuda", 0))
    policy.park()
    assert seen


def test_the_lora_is_where_the_model_computes(bench, monkeypatch):
    """ComfyUI leaves layers behind that it does not know, so the policy brings its own; here the place is one without content."""
    policy, seen = bench.policy(), []
    monkeypatch.setattr(policy, "_move_lora", lambda device: seen.append(device))
    with bench.open(policy):
        assert seen == [policy.patcher.load_device]
    policy.unload()
    assert seen[1:] == [policy.patcher.offload_device]
