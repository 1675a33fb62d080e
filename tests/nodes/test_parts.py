"""Parts of the nodes called directly, with ComfyUI in this process."""

import json
import sys
import time
from contextlib import nullcontext

import pytest
import torch

from stepwise_grpo.tests.nodes.graphs import version_by_hand
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.job import write_json
from stepwise_grpo.training.trajectory import Credit

pytestmark = pytest.mark.usefixtures("comfy")

WIDGETS = {"learning_rate": 1e-3, "clip": 1e-3, "targets": "attention", "target_pattern": "", "rank": 4, "alpha": 8.0, "optimiser": "adamw"}


def entry(tag=None, **options):
    return [torch.zeros(1, 2, 4), {**options, **({"stepwise_grpo": tag} if tag else {})}]


def tag(index, prompt="p"):
    return {"index": index, "prompt": prompt}


def test_entries_without_a_tag_are_one_prompt():
    from stepwise_grpo.nodes.convert import prompts_of

    (prompt,) = prompts_of([entry(), entry()])
    assert len(prompt.conditioning) == 2 and prompt.text == ""


def test_tagged_entries_are_prompts_of_their_own_in_order():
    from stepwise_grpo.nodes.convert import prompts_of

    prompts = prompts_of([entry(tag(5, "five")), entry(tag(2, "two")), entry()])
    assert [(p.index, p.text, len(p.conditioning)) for p in prompts] == [(5, "five", 1), (2, "two", 1), (0, "", 1)]
    assert "stepwise_grpo" not in prompts[0].conditioning[0][1]


def test_no_prompt_is_refused():
    from stepwise_grpo.nodes.convert import prompts_of

    with pytest.raises(ValueError, match="positive holds no prompt"):
        prompts_of([])


class TestFingerprint:
    """Live LoRA runs again exactly when another LoRA would be applied."""

    @pytest.fixture(autouse=True)
    def _import(self):
        from stepwise_grpo.nodes.live_lora import fingerprint

        self.of = fingerprint

    def test_the_lora_that_a_run_starts_from_counts(self, tmp_path, monkeypatch):
        import folder_paths

        monkeypatch.setitem(folder_paths.folder_names_and_paths, "loras", ([str(tmp_path)], {".safetensors"}))
        bare = self.of(tmp_path, "a", 0, False)
        (tmp_path / "style.safetensors").write_bytes(b"\0" * 100)
        begun = [self.of(tmp_path, "a", version, False, "style.safetensors") for version in (0, -1)]
        (tmp_path / "style.safetensors").write_bytes(b"\0" * 101)
        replaced = [self.of(tmp_path, "a", version, False, "style.safetensors") for version in (0, -1)]
        assert bare not in begun and not set(begun) & set(replaced)
        assert self.of(tmp_path, "a", 0, False, "gone.safetensors").startswith("unreadable")

    def test_newest_follows_the_pointer(self, tmp_path):
        before = self.of(tmp_path, "a", -1, False)
        version_by_hand(tmp_path, "a", 1)
        first = self.of(tmp_path, "a", -1, False)
        version_by_hand(tmp_path, "a", 2)
        assert len({before, first, self.of(tmp_path, "a", -1, False)}) == 3

    def test_touching_files_changes_nothing(self, tmp_path):
        folder = version_by_hand(tmp_path, "a", 1)
        before = self.of(tmp_path, "a", -1, False)
        for path in (folder.path / "latest.json", folder.version_file(1)):
            path.write_bytes(path.read_bytes())
        assert self.of(tmp_path, "a", -1, False) == before

    def test_a_pinned_version_ignores_newer_ones(self, tmp_path):
        version_by_hand(tmp_path, "a", 1)
        before = [self.of(tmp_path, "a", version, False) for version in (0, 1)]
        version_by_hand(tmp_path, "a", 2)
        assert [self.of(tmp_path, "a", version, False) for version in (0, 1)] == before

    def test_a_linked_name_follows_all_runs(self, tmp_path):
        version_by_hand(tmp_path, "a", 1)
        before = self.of(tmp_path, None, -1, False)
        version_by_hand(tmp_path, "b", 1)
        assert self.of(tmp_path, None, -1, False) != before

    @pytest.mark.parametrize("name, version", [("../up", -1), ("a", 9), ("a", None), (None, None), ("missing", -1)])
    def test_it_never_raises(self, tmp_path, name, version):
        version_by_hand(tmp_path, "a", 1)
        (tmp_path / "stepwise_grpo" / "a" / "latest.json").write_text("{cut", "utf-8")
        assert isinstance(self.of(tmp_path, name, version, False), str)


def credit(prompts, size, steps, law, blind=False, thumbnail=(24, 24)):
    generator = torch.Generator().manual_seed(1)
    rewards = torch.rand(steps + 1, prompts * size, generator=generator)
    if blind:
        rewards[:-1] = torch.nan
    schedule = Schedule.of(torch.linspace(1, 0, steps + 1).tolist(), law, -1, law != "flow")
    thumbnails = torch.rand(steps + 1, prompts * size, *thumbnail, 3, generator=generator)
    texts = tuple(f"prompt {i} " * 20 for i in range(prompts))
    return Credit(rewards, rewards[1:] - rewards[:-1], torch.randn(steps, prompts * size, generator=generator), schedule, size, texts, "centred", {"reward": "warmth"}, 0, thumbnails, 1, {})


@pytest.mark.parametrize(
    "shape",
    [(1, 2, 2, "ddim"), (4, 8, 10, "ddim"), (6, 24, 40, "flow"), (2, 3, 5, "cps", True), (1, 4, 12, "dance", False, (12, 24))],
    ids=["least", "demo", "many", "uniform", "wide"],
)
def test_the_figure_draws_every_credit(shape):
    from stepwise_grpo.nodes.figure import draw

    image = draw(credit(*shape))
    assert image.shape[0] == 1 and image.shape[-1] == 3 and image.dtype == torch.float32
    assert 0 <= image.min() and image.max() <= 1 and image.std() > 0.05
    assert torch.equal(image, draw(credit(*shape)))
    assert "matplotlib.pyplot" not in sys.modules


def test_the_figure_shows_equal_rewards_without_dividing_by_zero():
    from stepwise_grpo.nodes.figure import draw

    same = credit(1, 2, 3, "ddim")
    flat = Credit(same.rewards * 0, same.gains * 0, same.advantages * 0, same.schedule, 2, same.texts, "centred", {}, 1, None, 0, {})
    assert draw(flat).isfinite().all()


def test_a_full_disk_is_one_sentence_and_nothing_is_queued(tmp_path, monkeypatch):
    import errno

    from stepwise_grpo.nodes import handover
    from stepwise_grpo.training.config import Origin
    from stepwise_grpo.training.trajectory import Trajectory

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(handover.folder_paths, "get_output_directory", lambda: str(tmp_path))
    monkeypatch.setattr(handover, "pack", lambda *_: b"experience")
    monkeypatch.setattr(handover.RunFolder, "queue", full)
    earned = credit(1, 2, 3, "ddim")
    states = torch.zeros(4, 2, 1)
    trajectory = Trajectory(states, states[1:], earned.schedule, (None,), [], 1.0, 0, Origin(), {"kind": "demo"}, 1)

    class Node:
        hidden = None

    with pytest.raises(RuntimeError, match="no space left on the disk"):
        handover.hand_over(Node, trajectory, earned, "full", WIDGETS, True)
    assert json.loads((tmp_path / "stepwise_grpo" / "full" / "job.json").read_text())["base"] == {"kind": "demo"}


def test_a_trajectory_of_a_model_that_nobody_told_is_not_trained(tmp_path):
    from stepwise_grpo.nodes import handover
    from stepwise_grpo.training.config import Origin
    from stepwise_grpo.training.trajectory import Trajectory

    earned, states = credit(1, 2, 3, "ddim"), torch.zeros(4, 2, 1)
    trajectory = Trajectory(states, states[1:], earned.schedule, (None,), [], 1.0, 0, Origin(), None, 1)
    with pytest.raises(ValueError, match="which file this model came from: load it with Base Model, Demo Model, Load Diffusion Model or Load Checkpoint"):
        handover.check(trajectory, earned, handover.RunFolder(tmp_path, "r"))


@pytest.mark.parametrize(
    "share, wait, alive, freed", [(True, True, True, 1), (False, True, True, 0), (True, False, True, 0), (True, True, False, 0)], ids=["shared", "own card", "no wait", "no trainer"]
)
def test_comfyuis_models_make_room_for_a_trainer_that_will_work(share, wait, alive, freed, tmp_path, monkeypatch):
    from stepwise_grpo.nodes import handover
    from stepwise_grpo.training.config import Origin
    from stepwise_grpo.training.trajectory import Trajectory

    class Quiet:
        def __init__(self, *_):
            pass

        def announce(self, text):
            pass

    order: list[str] = []
    monkeypatch.setattr(handover, "Progress", Quiet)
    monkeypatch.setattr(handover.folder_paths, "get_output_directory", lambda: str(tmp_path))
    monkeypatch.setattr(handover, "pack", lambda *_: b"experience")
    monkeypatch.setattr(handover, "make_room_for_trainer", lambda: order.append("freed"))
    monkeypatch.setattr(handover, "wait_for", lambda *_: order.append("waited"))
    monkeypatch.setattr(handover.RunFolder, "trainer_is_alive", lambda self: alive)
    earned = credit(1, 2, 3, "ddim")
    states = torch.zeros(4, 2, 1)
    trajectory = Trajectory(states, states[1:], earned.schedule, (None,), [], 1.0, 0, Origin(), {"kind": "demo"}, 1)
    handover.hand_over(None, trajectory, earned, "shared", {**WIDGETS, "share_gpu": share}, wait)
    assert order == ["freed"] * freed + ["waited"] * wait


def test_a_graphics_card_is_freed_by_comfyuis_own_functions_and_a_cpu_is_left_alone(comfy, monkeypatch):
    import comfy.model_management as devices

    from stepwise_grpo.demo.comfy_model import load_demo_model
    from stepwise_grpo.nodes.convert import make_room_for_trainer

    model = load_demo_model()
    loaded = lambda: any(entry.model is model for entry in devices.current_loaded_models)
    devices.load_models_gpu([model])
    make_room_for_trainer()
    assert loaded()
    monkeypatch.setattr(devices, "is_device_cpu", lambda device: False)
    make_room_for_trainer()
    assert not loaded()


@pytest.mark.parametrize("alike, says", [(2, True), (1, False), (0, False)])
def test_an_iteration_in_which_all_pictures_score_alike_says_so(alike, says):
    from dataclasses import replace

    from stepwise_grpo.nodes.handover import nothing_learnt
    from stepwise_grpo.training.config import Origin
    from stepwise_grpo.training.trajectory import Trajectory

    earned, states = replace(credit(1, 2, 3, "ddim"), zero_variance_groups=alike), torch.zeros(4, 2, 1)
    trajectory = Trajectory(states, states[1:], earned.schedule, (None, None), [], 1.0, 0, Origin(), {"kind": "demo"}, 1)
    assert nothing_learnt(trajectory, earned).startswith("Nothing was learnt") == says


def test_a_prompt_of_another_text_encoder_is_told_in_words():
    from stepwise_grpo.demo.comfy_model import load_demo_model
    from stepwise_grpo.nodes.convert import velocity_of
    from stepwise_grpo.training.trajectory import Prompt

    model, wrong = load_demo_model(), [[torch.zeros(1, 4, 7), {"pooled_output": torch.zeros(1, 7)}]]
    velocity = velocity_of(model, (Prompt("p", 0, wrong),), wrong, 1.0, 4, lambda rows: None)
    with pytest.raises(ValueError, match="does not fit this model.*have 7 features; use the text encoder that belongs to the model"):
        velocity(torch.zeros(1, 16, 16, 16), torch.tensor([0.5]), torch.tensor([0]))



@pytest.mark.parametrize(
    "version, newest, says",
    [
        (3, 3, None),
        (1, 3, None),
        (1, 4, "Live LoRA has version 1 .* at version 4 .*set version to -1 in Live LoRA, or go back to version 1 in the Stepwise GRPO panel"),
        (0, 3, "set version to -1 in Live LoRA, or choose another run_name"),
        (0, 2, None),
    ],
)
def test_a_version_that_is_too_old_to_train_on_is_told_at_once(version, newest, says, tmp_path):
    from stepwise_grpo.nodes import handover
    from stepwise_grpo.training.config import Origin
    from stepwise_grpo.training.trajectory import Trajectory

    earned, states = credit(1, 2, 3, "ddim"), torch.zeros(4, 2, 1)
    origin = Origin(run="r", version=version, loras=1)
    trajectory = Trajectory(states, states[1:], earned.schedule, (None,), [], 1.0, 0, origin, {"kind": "demo"}, 1)
    run = handover.RunFolder(tmp_path, "r")
    run.write_latest({"version": newest, "file": "", "digest": "", "experience": ""})
    with pytest.raises(ValueError, match=says) if says else nullcontext():
        handover.check(trajectory, earned, run)


def test_an_iteration_of_a_paused_run_is_not_waited_for(tmp_path):
    from stepwise_grpo.nodes import handover
    from stepwise_grpo.training import control

    run = handover.RunFolder(tmp_path, "r")
    control.pause(run, True)
    run.queue(b"x")
    write_json(run.output / "stepwise_grpo" / "trainer.json", {"at": time.time()})
    assert handover.wait_for(run, "0" * 64, None) is None
    assert all(control.PAUSED in handover.queued(run, wait) for wait in (False, True))
    control.pause(run, False)
    assert control.PAUSED not in handover.queued(run, wait=False)
