"""Going back, pausing and stopping: on files alone, repeatable after a crash, and training goes on from there."""

import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from filelock import FileLock

from stepwise_grpo.tests.analytic import JOB, AnalyticPolicy
from stepwise_grpo.tests.training.test_live_run import Crash, files, opened, train
from stepwise_grpo.tests.training.test_live_run import queue as queue_version
from stepwise_grpo.tests.training.test_run import FOREVER, empty, message, new_run, trainer, wait
from stepwise_grpo.tests.training.test_run import queue as queue_base
from stepwise_grpo.training import control, go_back, heartbeat, live_run, lora, run
from stepwise_grpo.training.base import DEMO
from stepwise_grpo.training.comfyui import prepare
from stepwise_grpo.training.config import Job, Origin, to_json
from stepwise_grpo.training.graph_run import DroppedExperience, GraphRun
from stepwise_grpo.training.job import RunFolder, digest_of, read_json, write_json


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(run, "POLL", 0.005)
    monkeypatch.setattr(run, "PATIENCE", 0.05)
    monkeypatch.setattr(heartbeat, "BEAT", 0.02)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """A run of four versions, with pictures and averages."""
    return learnt(RunFolder(tmp_path, "été 1"))


def learnt(folder: RunFolder, versions: int = 4) -> RunFolder:
    folder.agree_on_job(to_json(JOB))
    live = opened(folder)
    for seed in range(versions):
        path = queue_version(folder, seed)
        train(live, path)
        path.unlink()
    return folder


def ask(folder: RunFolder, version: Any = 2) -> Path:
    control.ask_to_go_back(folder, version)
    (request,) = control.requests(folder)
    return request


def back(folder: RunFolder, version: Any = 2) -> None:
    go_back.answer(folder, ask(folder, version))


def tensors(folder: RunFolder, version: int) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(folder.version_file(version).read_bytes())


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


def test_the_newest_version_has_the_weights_of_the_old_one_bit_for_bit_and_nothing_is_removed(folder):
    before = {path: path.read_bytes() for path in folder.loras.iterdir()}
    request = ask(folder, 2)
    go_back.answer(folder, request)
    assert same(tensors(folder, 5), tensors(folder, 2)) and not same(tensors(folder, 5), tensors(folder, 4))
    event = folder.events()[-1]
    assert set(event) == {"version", "back_to", "experience", "at"} and (event["version"], event["back_to"]) == (5, 2)
    assert event["experience"] == f"back-{request.name[:20]}" and not request.exists()
    data = folder.version_file(5).read_bytes()
    assert folder.latest() == {"version": 5, "file": "loras/stepwise_grpo/été 1/v000005.safetensors", "digest": digest_of(data), "experience": event["experience"]}
    about, old = (json.loads(lora.metadata_of(folder.version_file(version).read_bytes())["stepwise_grpo"]) for version in (5, 2))
    assert about == {**old, "version": 5, "back_to": 2} and old["prompts"]
    assert folder.picture_file(5).read_bytes() == folder.picture_file(2).read_bytes() and not folder.version_file(5, ema=True).exists()
    assert all(path.read_bytes() == data for path, data in before.items())
    status = read_json(folder.path / "status.json")
    assert (status["phase"], status["version"]) == ("waiting", 5) and "has the weights of version 2" in status["message"]


def test_training_goes_on_from_the_old_weights_with_a_fresh_optimiser_and_no_average(folder):
    back(folder)
    live = opened(folder)
    assert live.version == 5 and same(live.policy.weights(), lora.load(folder.version_file(2).read_bytes())) and live.ema is None and not live.optimiser.state
    event = train(live, queue_version(folder, 7))
    assert event["version"] == 6 and event["behaviour_version"] == 5 and event["ratio_error_max"] == 0
    assert sorted(path.name for path in folder.state.iterdir()) == ["v000005.safetensors", "v000006.safetensors"]
    assert opened(folder).version == 6 and same(live_run.lora.load(folder.version_file(6).read_bytes()), live.policy.weights())


def test_going_back_and_training_on_is_deterministic(tmp_path):
    runs = [learnt(RunFolder(tmp_path / place, "r")) for place in "ab"]
    for folder in runs:
        back(folder)
        train(opened(folder), queue_version(folder, 7))
    assert files(runs[0]) == files(runs[1])


def test_going_back_twice_and_to_a_going_back(folder):
    back(folder, 2)
    back(folder, 4)
    back(folder, 5)
    assert [event.get("back_to") for event in folder.events()] == [None] * 4 + [2, 4, 5]
    assert same(tensors(folder, 7), tensors(folder, 2)) and same(tensors(folder, 6), tensors(folder, 4))
    assert json.loads(lora.metadata_of(folder.version_file(7).read_bytes())["stepwise_grpo"])["back_to"] == 5


def test_what_was_made_before_is_dropped_with_the_reason(folder):
    stale = [queue_version(folder, 8, version) for version in (4, 2, 0)]
    back(folder)
    live = opened(folder)
    for path in stale:
        with pytest.raises(DroppedExperience, match="made before the run went back to version 2"):
            train(live, path)
    assert live.version == 5 and train(live, queue_version(folder, 9))["version"] == 6
    with pytest.raises(DroppedExperience, match="made before the run went back to version 2"):
        train(live, stale[0])  # also later, when it would be young enough
    train(live, queue_version(folder, 10, 5))  # a version behind, but after the going back


# crashes

WRITES = ("picture", "version", "state", "event", "pointer")


def crash_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> list[str]:
    """Die as soon as so many writes of the commit are made; the names of what was written."""
    done: list[str] = []

    def counted(write, name):
        def wrapper(*args):
            write(*args)
            done.append(name(*args))
            if len(done) == writes:
                raise Crash

        return wrapper

    monkeypatch.setattr(live_run, "write_whole", counted(live_run.write_whole, lambda path, data: "state" if path.parent.name == "state" else {".png": "picture"}.get(path.suffix, "version")))
    monkeypatch.setattr(RunFolder, "append_event", counted(RunFolder.append_event, lambda *_: "event"))
    monkeypatch.setattr(RunFolder, "write_latest", counted(RunFolder.write_latest, lambda *_: "pointer"))
    return done


@pytest.mark.parametrize("writes", range(1, len(WRITES) + 1), ids=WRITES)
def test_a_crash_after_any_write_loses_nothing_and_repeats_to_the_bit(writes, tmp_path, monkeypatch):
    whole, crashed = (learnt(RunFolder(tmp_path / place, "r")) for place in "ab")
    request = ask(whole)
    go_back.answer(whole, request)
    same_request = crashed.path / "requests" / request.name
    write_json(same_request, {"kind": "go_back", "version": 2})
    done = crash_after(monkeypatch, writes)
    with pytest.raises(Crash):
        go_back.answer(crashed, same_request)
    monkeypatch.undo()
    assert done == list(WRITES[:writes]) and same_request.exists()
    assert opened(crashed).version == (5 if writes == len(WRITES) else 4)
    go_back.answer(crashed, same_request)
    assert not same_request.exists() and files(crashed) == files(whole) and crashed.latest() == whole.latest()
    assert [event["version"] for event in crashed.events()] == [1, 2, 3, 4, 5] and opened(crashed).version == 5


def test_what_a_crashed_update_left_is_not_taken_for_the_version_gone_back_to(folder, monkeypatch):
    live, path = opened(folder), queue_version(folder, 9)
    crash_after(monkeypatch, 4)  # picture, version, average, state
    with pytest.raises(Crash):
        train(live, path)
    monkeypatch.undo()
    assert folder.version_file(5, ema=True).exists() and folder.latest()["version"] == 4
    folder.picture_file(2).unlink()
    back(folder)
    assert same(tensors(folder, 5), tensors(folder, 2)) and not folder.version_file(5, ema=True).exists() and not folder.picture_file(5).exists()
    assert len(list(folder.loras.glob("v000005*.replaced-*"))) == 3  # put beside, not deleted


def test_a_full_disk_is_tried_again(folder, monkeypatch):
    write, failed = live_run.write_whole, []

    def once(path, data):
        if not failed:
            failed.append(path)
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(live_run, "write_whole", once)
    request = ask(folder)
    with trainer(folder.output):
        wait(lambda: not request.exists())
    assert failed and folder.latest()["version"] == 5


# refused


def gone(folder):
    folder.version_file(2).unlink()


def cut(folder):
    folder.version_file(2).write_bytes(folder.version_file(2).read_bytes()[:-5])


def another(folder):
    folder.version_file(2).write_bytes(folder.version_file(3).read_bytes())


def not_a_number(folder):
    weights = lora.load(folder.version_file(2).read_bytes())
    folder.version_file(2).write_bytes(lora.save({name: w * float("nan") for name, w in weights.items()}, JOB, {"version": 2}))


@pytest.mark.parametrize(
    "version, spoil, says",
    [
        (4, None, "version 4 is the newest already"),
        (9, None, "no version 9"),
        (0, None, "no version 0"),
        (-1, None, "no version -1"),
        (2, gone, "is gone"),
        (2, cut, "is damaged"),
        (2, another, "is not version 2 of this run"),
        (2, not_a_number, "is damaged"),
        (True, None, "request .* is damaged"),
        ("2", None, "request .* is damaged"),
    ],
)
def test_what_cannot_be_gone_back_to_is_said_and_changes_nothing(version, spoil, says, folder):
    if spoil:
        spoil(folder)
    before = files(folder), folder.latest(), folder.events()
    back(folder, version)
    assert (files(folder), folder.latest(), folder.events()) == before and not control.requests(folder)
    assert re.search(f"^Did not go back: .*{says}", message(folder))


def test_a_request_that_is_no_json_is_said_and_removed(folder):
    request = ask(folder)
    request.write_bytes(b"{")
    go_back.answer(folder, request)
    assert "is damaged; ask again" in message(folder) and not request.exists() and folder.latest()["version"] == 4


# the loop


def test_the_loop_goes_back_before_it_trains_and_also_while_the_run_is_paused(folder):
    stale = queue_version(folder, 8)
    control.pause(folder, True)
    with trainer(folder.output):
        wait(lambda: (read_json(folder.path / "status.json") or {}).get("phase") == "paused")
        ask(folder)
        wait(lambda: not control.requests(folder))
        assert folder.latest()["version"] == 5 and stale.exists()
        assert (read_json(folder.path / "status.json"))["phase"] == "paused"
        control.pause(folder, False)
        wait(empty(folder))
    assert "went back to version 2" in folder.fate(stale.stem.split("-")[-1])["dropped"] and folder.latest()["version"] == 5


def test_a_paused_run_keeps_its_inbox_while_the_others_go_on(tmp_path):
    paused, other = new_run(tmp_path, "paused"), new_run(tmp_path, "other")
    control.pause(paused, True)
    queue_base(paused, 0)
    with trainer(tmp_path):
        queue_base(other, 1)
        wait(empty(other))
        wait(lambda: message(paused) == control.PAUSED)
        assert len(paused.waiting()) == 1 and paused.latest() is None
        control.pause(paused, False)
        wait(empty(paused))
    assert paused.latest()["version"] == 1 and read_json(paused.path / "status.json")["phase"] == "waiting"


def test_a_pause_during_an_update_lets_it_finish(tmp_path):
    a, begun, release = new_run(tmp_path, "a"), threading.Event(), threading.Event()

    class Slow(AnalyticPolicy):
        def velocity(self, x, t, rows):
            begun.set()
            assert release.wait(FOREVER)
            return super().velocity(x, t, rows)

    for seed in range(2):
        queue_base(a, seed)
    with trainer(tmp_path, Slow):
        assert begun.wait(FOREVER)
        control.pause(a, True)
        release.set()
        wait(lambda: read_json(a.path / "status.json")["phase"] == "paused")
        assert a.latest()["version"] == 1 and len(a.waiting()) == 1


def test_the_stop_file_ends_the_trainer_after_the_running_update(tmp_path):
    a, begun, release = new_run(tmp_path, "a"), threading.Event(), threading.Event()

    class Slow(AnalyticPolicy):
        def velocity(self, x, t, rows):
            begun.set()
            assert release.wait(FOREVER)
            return super().velocity(x, t, rows)

    for seed in range(2):
        queue_base(a, seed)
    thread = threading.Thread(target=run.run, args=(tmp_path, Slow))
    thread.start()
    assert begun.wait(FOREVER)
    control.ask_to_stop(tmp_path)
    release.set()
    thread.join(FOREVER)
    assert a.latest()["version"] == 1 and len(a.waiting()) == 1 and not control.stop_file(tmp_path).exists()
    assert read_json(tmp_path / "stepwise_grpo" / "trainer.json")["stopped"]


def test_a_stop_of_earlier_days_does_not_end_the_next_trainer(tmp_path):
    a = new_run(tmp_path, "a")
    queue_base(a)
    control.ask_to_stop(tmp_path)
    with trainer(tmp_path):
        wait(empty(a))
    assert a.latest()["version"] == 1 and not control.stop_file(tmp_path).exists()


def test_a_folder_named_stop_stops_nothing_and_no_run_may_have_that_name(tmp_path):
    with pytest.raises(ValueError, match="not usable"):
        RunFolder(tmp_path, "Stop")
    a = new_run(tmp_path, "a")
    queue_base(a)
    control.stop_file(tmp_path).mkdir()
    with trainer(tmp_path):
        wait(empty(a))


def test_a_run_that_is_trained_headless_is_not_touched(folder):
    status = (folder.path / "status.json").read_bytes() if (folder.path / "status.json").exists() else None
    other = new_run(folder.output, "other")
    request = ask(folder)
    with heartbeat.Heartbeat(folder.path), trainer(folder.output):
        queue_base(other)
        wait(empty(other))
        assert request.exists() and folder.latest()["version"] == 4
        assert status is None or (folder.path / "status.json").read_bytes() == status
    with trainer(folder.output):
        wait(lambda: not request.exists())
    assert folder.latest()["version"] == 5


def test_the_lock_of_a_headless_trainer_is_respected(folder):
    request = ask(folder)
    with FileLock(folder.path / "trainer.lock"), pytest.raises(ValueError, match="headless"):
        go_back.answer_alone(folder, request)
    assert request.exists() and folder.latest()["version"] == 4


def test_the_newest_wish_counts(folder):
    control.ask_to_go_back(folder, 1)
    back(folder, 3)
    assert folder.events()[-1]["back_to"] == 3
    control.ask_to_go_back(folder, 1)
    control.ask_to_go_back(folder, None)
    assert not control.requests(folder)


# the real model


@pytest.fixture(scope="module")
def demo(comfyui_folder: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        prepare({"root": str(comfyui_folder), "argv": ["--cpu"]}, None)
        from stepwise_grpo.training.backends.comfy import open_policy

        yield open_policy(Job(base=DEMO, rank=4, alpha=8.0))


def test_the_demo_model_goes_back_and_trains_on(demo, tmp_path):
    from stepwise_grpo.tests.training.test_trainer_process import packed

    folder = RunFolder(tmp_path, "demo")
    folder.agree_on_job(to_json(demo.job))
    live = GraphRun(folder, demo.job, demo)
    for seed in range(3):  # all of the base model: at most two versions behind
        demo.set_weights(demo.first_weights())
        data = packed(demo, seed, 3, 2, updates=1)
        live.restore()
        train(live, folder.inbox / folder_name(folder, data))
    back(folder, 1)
    assert same(tensors(folder, 4), tensors(folder, 1)) and not same(tensors(folder, 4), tensors(folder, 3))
    again = GraphRun(folder, demo.job, demo)
    assert again.version == 4 and same(demo.weights(), lora.load(folder.version_file(1).read_bytes()))
    origin = Origin(run="demo", version=4, digest=again.digest)
    event = train(again, folder.inbox / folder_name(folder, packed(demo, 5, 3, 2, origin=origin, updates=1)))
    assert event["version"] == 5 and event["ratio_error_max"] == 0 and event["graph_velocity_error"] < 1e-4


def folder_name(folder: RunFolder, data: bytes) -> str:
    id = folder.queue(data)
    return next(path.name for path in folder.waiting() if id in path.name)
