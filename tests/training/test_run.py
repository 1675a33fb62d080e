"""The trainer's loop in a thread: order, what is put aside, what is only put off, and that nothing is lost."""

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
from filelock import FileLock

from stepwise_grpo.tests.analytic import JOB, AnalyticPolicy, packed, plan
from stepwise_grpo.training import heartbeat, job, live_run, run
from stepwise_grpo.training.base import Unfit
from stepwise_grpo.training.config import Origin, to_json
from stepwise_grpo.training.experience import FORMAT, KEY
from stepwise_grpo.training.graph_run import GraphRun
from stepwise_grpo.training.job import RunFolder, digest_of, read_json, write_json

PLAN = plan(group_size=2, updates=1)
FOREVER = 20.0  # seconds, long enough for a machine that does other things as well


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(run, "POLL", 0.005)
    monkeypatch.setattr(run, "PATIENCE", 0.05)
    monkeypatch.setattr(heartbeat, "BEAT", 0.02)


def new_run(output: Path, name: str, the_job=JOB) -> RunFolder:
    folder = RunFolder(output, name)
    folder.agree_on_job(to_json(the_job))
    return folder


def queue(folder: RunFolder, seed: int = 0, the_job=JOB, **origin) -> str:
    """An experience of the base model."""
    return folder.queue(packed(AnalyticPolicy(the_job), PLAN, seed, Origin(**origin)))


@contextmanager
def trainer(output: Path, open_policy: Callable = AnalyticPolicy) -> Iterator[threading.Thread]:
    """A trainer that serves ``output`` until the block ends; fails the test when it dies before."""
    stop, died = threading.Event(), []

    def work():
        try:
            run.run(output, open_policy, until=stop.is_set)
        except BaseException as error:
            died.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
        assert thread.is_alive() or not died, f"the trainer died: {died[0]!r}"
    finally:
        stop.set()
        thread.join(FOREVER)
    assert not thread.is_alive() and not died, died


def wait(condition: Callable) -> None:
    end = time.monotonic() + FOREVER
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def empty(*folders: RunFolder) -> Callable:
    return lambda: not any(folder.waiting() for folder in folders)


def message(folder: RunFolder) -> str:
    return (read_json(folder.path / "status.json") or {}).get("message", "")


def test_experiences_are_trained_in_the_order_they_came_over_all_runs(tmp_path, monkeypatch):
    a, b, order = new_run(tmp_path, "a"), new_run(tmp_path, "b"), []
    train = GraphRun.train
    monkeypatch.setattr(GraphRun, "train", lambda self, path, id, say: (order.append(id), train(self, path, id, say))[1])
    ids = [queue(folder, seed) for seed, folder in enumerate((b, a, a, b, a, b))]
    with trainer(tmp_path):
        wait(empty(a, b))
    assert order == ids
    assert [event["experience"] for event in a.events()] == [ids[i] for i in (1, 2, 4)]
    assert a.latest()["version"] == b.latest()["version"] == 3


def test_runs_of_one_job_share_the_model_and_keep_their_weights_apart(tmp_path):
    a, b, opened = new_run(tmp_path, "a"), new_run(tmp_path, "b"), []
    for seed in range(2):
        queue(a, seed)
        queue(b, seed)
    with trainer(tmp_path, lambda j: opened.append(j) or AnalyticPolicy(j)):
        wait(empty(a, b))
    assert opened == [JOB]
    assert live_run.lora.load(a.version_file(2).read_bytes()).keys() == live_run.lora.load(b.version_file(2).read_bytes()).keys()
    for name, w in live_run.lora.load(a.version_file(2).read_bytes()).items():
        assert w.equal(live_run.lora.load(b.version_file(2).read_bytes())[name])  # the same experiences, the same versions


def test_an_experience_that_arrives_later_is_found(tmp_path):
    a = new_run(tmp_path, "a")
    with trainer(tmp_path):
        queue(a)
        wait(lambda: a.latest() is not None and not a.waiting())
        late = new_run(tmp_path, "late")
        queue(late)
        wait(lambda: late.latest() is not None)


def test_a_cut_file_goes_to_rejected_with_the_reason_and_the_next_one_is_trained(tmp_path):
    a = new_run(tmp_path, "a")
    whole = packed(AnalyticPolicy(), PLAN)
    id = a.queue(whole[: len(whole) // 2])
    queue(a, 1)
    with trainer(tmp_path):
        wait(empty(a))
    assert a.latest()["version"] == 1
    assert "cut short or not an experience file" in a.fate(id)["rejected"]
    assert [p.read_bytes() for p in a.rejected.glob("*.safetensors")] == [whole[: len(whole) // 2]]


def test_a_file_of_a_newer_pack_is_kept_and_says_what_to_do(tmp_path):
    a = new_run(tmp_path, "a")
    newer = safetensors.torch.save({}, {KEY: json.dumps({"format": FORMAT + 1})})
    id = a.queue(newer)
    with trainer(tmp_path):
        wait(empty(a))
    assert "Update the pack and restart the trainer" in a.fate(id)["rejected"]
    assert [p.read_bytes() for p in a.rejected.glob("*.safetensors")] == [newer]


def test_what_came_too_late_goes_to_dropped_with_the_reason(tmp_path):
    a = new_run(tmp_path, "a")
    for seed in range(3):
        queue(a, seed)
    with trainer(tmp_path):
        wait(empty(a))
        id = queue(a, 9)
        wait(empty(a))
    assert "more than 2 versions old" in a.fate(id)["dropped"] and len(list(a.dropped.glob("*.safetensors"))) == 1


def test_what_was_used_is_not_used_twice(tmp_path):
    a = new_run(tmp_path, "a")
    data = packed(AnalyticPolicy(), PLAN)
    for _ in range(2):
        a.queue(data)
        with trainer(tmp_path):
            wait(empty(a))
    with trainer(tmp_path):
        for _ in range(2):
            a.queue(data)
            wait(empty(a))
    assert a.latest()["version"] == 1 and len(a.events()) == 1 and not a.rejected.exists()


GONE = replace(JOB, base={"kind": "diffusion_models", "name": "gone.safetensors"})


def open_or_fail(error: Exception) -> Callable:
    def open_policy(j):
        if j == GONE:
            raise error
        return AnalyticPolicy(j)

    return open_policy


@pytest.mark.parametrize(
    "error",
    [ValueError("the base model 'gone.safetensors' is no longer there"), MemoryError("no memory"), KeyError("odd"), ImportError("no such module")],
)
def test_a_run_whose_base_model_cannot_be_opened_keeps_its_experience_and_blocks_no_other(error, tmp_path):
    gone, good = new_run(tmp_path, "gone", GONE), new_run(tmp_path, "good")
    queue(gone, 0, GONE)
    for seed in range(2):
        queue(good, seed)
    with trainer(tmp_path, open_or_fail(error)):
        wait(empty(good))
        wait(lambda: "trying again" in message(gone))
    assert good.latest()["version"] == 2
    assert len(gone.waiting()) == 1 and str(error) in message(gone) and "nothing is lost" in message(gone)


def test_a_base_model_that_can_never_be_trained_is_told_to_the_graph_at_once(tmp_path):
    """Waiting would not help: the node would wait for ever."""
    unfit, good = new_run(tmp_path, "unfit", GONE), new_run(tmp_path, "good")
    id = queue(unfit, 0, GONE)
    queue(good)
    with trainer(tmp_path, open_or_fail(Unfit("'gone.safetensors' is not whole"))):
        wait(empty(unfit, good))
    assert unfit.fate(id) == {"rejected": "'gone.safetensors' is not whole"} and good.latest()["version"] == 1
    assert len(list(unfit.rejected.glob("*.safetensors"))) == 1  # nothing is lost


def test_a_base_model_that_comes_back_is_trained_without_a_restart(tmp_path):
    gone, attempts = new_run(tmp_path, "gone", GONE), []

    def open_policy(j):
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError("put it back")
        return AnalyticPolicy(j)

    queue(gone, 0, GONE)
    with trainer(tmp_path, open_policy):
        wait(empty(gone))
    assert gone.latest()["version"] == 1 and len(attempts) == 3


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"rank": 4}', '{"base": {"kind": "analytic"}, "rnk": 4}'])
def test_a_run_with_a_broken_job_blocks_no_other(text, tmp_path):
    broken, good = RunFolder(tmp_path, "broken"), new_run(tmp_path, "good")
    queue(broken)
    queue(good)
    if text is not None:
        (broken.path / "job.json").write_text(text)
    with trainer(tmp_path):
        wait(empty(good))
        wait(lambda: "trying again" in message(broken))
    assert len(broken.waiting()) == 1 and good.latest()["version"] == 1


def test_a_run_with_a_broken_state_blocks_no_other_and_loses_nothing(tmp_path):
    broken, good = new_run(tmp_path, "broken"), new_run(tmp_path, "good")
    queue(broken)
    with trainer(tmp_path):
        wait(empty(broken))
    state = broken.state / "v000001.safetensors"
    whole = state.read_bytes()
    state.write_bytes(whole[:100])
    queue(broken, 1)
    queue(good, 1)
    with trainer(tmp_path):
        wait(empty(good))
        wait(lambda: "trying again" in message(broken))
        assert len(broken.waiting()) == 1
        state.write_bytes(whole)
        wait(empty(broken))
    assert broken.latest()["version"] == 2


def full_once(real: Callable, when: Callable[..., bool]) -> tuple[Callable, list]:
    """``real``, but the first call for which ``when`` holds finds the disk full."""
    failed: list = []

    def write(*args, **kwargs):
        if not failed and when(*args):
            failed.append(args)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    return write, failed


@pytest.mark.parametrize("place", ["version", "state"])
def test_a_full_disk_keeps_the_experience_and_training_goes_on_when_there_is_space(place, tmp_path, monkeypatch):
    a, other = new_run(tmp_path, "a"), RunFolder(tmp_path / "undisturbed", "a")
    other.agree_on_job(to_json(JOB))
    for seed in range(2):
        data = packed(AnalyticPolicy(), PLAN, seed)
        a.queue(data)
        other.queue(data)
    write, failed = full_once(
        live_run.write_whole, lambda path, data: (path.parent.name == "state") == (place == "state") and path.name.startswith("v000002")
    )
    monkeypatch.setattr(live_run, "write_whole", write)
    seen = []
    real = RunFolder.write_status
    monkeypatch.setattr(RunFolder, "write_status", lambda self, **status: (seen.append(status["message"]), real(self, **status)))
    with trainer(tmp_path):
        wait(empty(a))
    assert failed and any("No space left on device; trying again" in text for text in seen)
    monkeypatch.undo()
    with trainer(tmp_path / "undisturbed"):
        wait(empty(other))
    assert a.latest() == other.latest() and a.latest()["version"] == 2
    assert a.version_file(2).read_bytes() == other.version_file(2).read_bytes()


@pytest.mark.parametrize("method", ["append_event", "write_latest", "write_status"])
def test_a_full_disk_at_any_other_write_is_survived_as_well(method, tmp_path, monkeypatch):
    a = new_run(tmp_path, "a")
    write, failed = full_once(getattr(RunFolder, method), lambda *_: True)
    monkeypatch.setattr(RunFolder, method, write)
    queue(a)
    with trainer(tmp_path):
        wait(empty(a))
    assert failed and a.latest()["version"] == 1 and len(a.events()) == 1


def test_a_full_disk_while_an_experience_is_put_aside_is_survived(tmp_path, monkeypatch):
    a = new_run(tmp_path, "a")
    write, failed = full_once(job.write_json, lambda path, value: path.parent.name == "rejected")
    monkeypatch.setattr(job, "write_json", write)
    id = a.queue(b"not an experience")
    with trainer(tmp_path):
        wait(empty(a))
    assert failed and "rejected" in a.fate(id)


def test_a_second_trainer_is_refused_and_told_who_is_there(tmp_path):
    with trainer(tmp_path):
        wait((tmp_path / "stepwise_grpo" / "trainer.json").is_file)
        with pytest.raises(SystemExit, match=r"A trainer \(process \d+ on .+\) already serves .*Close it first, or leave this to it"):
            run.run(tmp_path, AnalyticPolicy)
    with trainer(tmp_path):  # the first one is gone
        pass


def test_the_lock_is_free_as_soon_as_a_trainer_has_ended(tmp_path):
    run.run(tmp_path, AnalyticPolicy, until=lambda: True)
    with FileLock(tmp_path / "stepwise_grpo" / "trainer.lock", timeout=0):
        pass


def test_two_trainers_on_two_output_folders_do_not_disturb_each_other(tmp_path):
    a, b = new_run(tmp_path / "1", "a"), new_run(tmp_path / "2", "a")
    queue(a)
    queue(b)
    with trainer(tmp_path / "1"), trainer(tmp_path / "2"):
        wait(empty(a, b))


def test_the_heart_beats_during_a_long_update_and_stops_cleanly(tmp_path):
    a, beats = new_run(tmp_path, "a"), []
    release = threading.Event()

    class Slow(AnalyticPolicy):
        def velocity(self, x, t, rows):
            assert release.wait(FOREVER)
            return super().velocity(x, t, rows)

    queue(a)
    read = lambda: read_json(tmp_path / "stepwise_grpo" / "trainer.json") or {}
    with trainer(tmp_path, Slow):
        wait(lambda: (read_json(a.path / "status.json") or {}).get("phase") == "training")
        assert message(a) == "training version 1"
        wait(lambda: beats.append(read().get("at")) or len({*beats} - {None}) >= 3)
        assert a.trainer_is_alive() and not read().get("stopped")
        release.set()
        wait(empty(a))
    assert read()["stopped"] and not a.trainer_is_alive()
    assert (read_json(a.path / "status.json"))["phase"] == "waiting" and message(a) == ""


def test_a_stop_that_was_asked_for_during_an_update_lets_it_finish(tmp_path):
    a, begun, asked = new_run(tmp_path, "a"), threading.Event(), threading.Event()

    class Slow(AnalyticPolicy):
        def velocity(self, x, t, rows):
            begun.set()
            assert asked.wait(FOREVER)
            return super().velocity(x, t, rows)

    queue(a, 0)
    queue(a, 1)
    thread = threading.Thread(target=run.run, args=(tmp_path, Slow, asked.is_set))
    thread.start()
    assert begun.wait(FOREVER)
    asked.set()
    thread.join(FOREVER)
    assert a.latest()["version"] == 1 and len(a.waiting()) == 1


def test_a_restarted_trainer_that_finds_a_committed_experience_in_the_inbox_only_removes_it(tmp_path):
    """What a crash between the commit and the removal leaves."""
    a = new_run(tmp_path, "a")
    data = packed(AnalyticPolicy(), PLAN)
    a.queue(data)
    with trainer(tmp_path):
        wait(empty(a))
    version = a.version_file(1).read_bytes()
    a.queue(data)
    with trainer(tmp_path):
        wait(empty(a))
    assert a.latest()["version"] == 1 and a.version_file(1).read_bytes() == version
    assert a.fate(digest_of(data))["version"] == 1


def test_folders_that_are_no_runs_are_passed_over(tmp_path):
    a = new_run(tmp_path, "a")
    (tmp_path / "stepwise_grpo" / ".trash" / "inbox").mkdir(parents=True)
    (tmp_path / "stepwise_grpo" / "empty").mkdir()
    write_json(tmp_path / "stepwise_grpo" / "comfyui.json", {})
    queue(a)
    with trainer(tmp_path):
        wait(empty(a))
    assert a.latest()["version"] == 1


def test_a_run_whose_folder_was_deleted_starts_again_and_keeps_the_old_files(tmp_path):
    again = new_run(tmp_path, "again")
    queue(again, 0)
    with trainer(tmp_path):
        wait(lambda: (job.read_json(again.path / "status.json") or {}).get("version") == 1)  # the last thing it writes
        wait(empty(again))
        old = again.version_file(1).read_bytes()
        shutil.rmtree(again.path)
        again = new_run(tmp_path, "again")
        queue(again, 1)
        wait(lambda: (again.latest() or {}).get("version") == 1)
        wait(empty(again))
    assert [event["behaviour_version"] for event in again.events()] == [0]
    assert again.version_file(1).read_bytes() != old
    assert [path.read_bytes() for path in again.loras.glob("v000001.replaced-*.safetensors")] == [old]
