"""A run in the trainer's hands: committed whole or not at all, repeatable to the bit, and choosy about what it trains on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.analytic import JOB, LAYERS, AnalyticPolicy, packed, plan
from stepwise_grpo.training import graph_run, live_run, lora
from stepwise_grpo.training.config import Origin
from stepwise_grpo.training.experience import unpack
from stepwise_grpo.training.graph_run import DroppedExperience, GraphRun
from stepwise_grpo.training.job import RunFolder, digest_of, read_json
from stepwise_grpo.training.selfcheck import probe_of
from stepwise_grpo.training.update import RefusedExperience

PLAN = plan(group_size=4, updates=2, ema=0.5)


def graph_policy(folder: RunFolder, version: int) -> AnalyticPolicy:
    """The policy as the graph has it: the version's file on the base model."""
    policy = AnalyticPolicy(JOB)
    if version:
        policy.set_weights(lora.load(folder.version_file(version).read_bytes()))
    return policy


def queue(folder: RunFolder, seed: int, version: int | None = None, the_plan=PLAN) -> Path:
    """One iteration of the graph with ``version`` (the newest by default) waits in the inbox."""
    version = (folder.latest() or {"version": 0})["version"] if version is None else version
    digest = digest_of(folder.version_file(version).read_bytes()) if version else ""
    id = folder.queue(packed(graph_policy(folder, version), the_plan, seed, Origin(run=folder.name, version=version, digest=digest)))
    return next(path for path in folder.waiting() if id in path.name)


def opened(folder: RunFolder, policy=None) -> GraphRun:
    """What a new process would have."""
    return GraphRun(folder, JOB, policy or AnalyticPolicy(JOB))


def train(run: GraphRun, path: Path) -> dict:
    return run.train(path, path.stem.split("-")[-1])


def files(folder: RunFolder) -> dict[str, bytes]:
    """Everything that must be equal to the bit: versions, their averages, and the state."""
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for place in (folder.loras, folder.state) for path in sorted(place.iterdir())}


def committed(folder: RunFolder) -> list[dict]:
    """Events but for the time they took."""
    return [{key: value for key, value in event.items() if key not in ("at", "seconds", "rollout_seconds")} for event in folder.events()]


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path, "été 1")


def test_an_experience_becomes_a_version_with_everything_that_belongs_to_it(folder):
    run, path = opened(folder), queue(folder, 0)
    event = train(run, path)
    data = folder.version_file(1).read_bytes()
    assert folder.latest() == {
        "version": 1,
        "file": "loras/stepwise_grpo/été 1/v000001.safetensors",
        "digest": digest_of(data),
        "experience": event["experience"],
    }
    assert (run.version, run.digest) == (1, digest_of(data)) and folder.events() == [event]
    assert (folder.state / "v000001.safetensors").is_file() and event["experience"] in run.used
    assert event["keys_matched"] == event["keys_total"] == len(LAYERS)
    assert event["reward_start"] is not None and event["behaviour_version"] == 0 and event["pictures"] == 8


def test_a_version_file_has_alpha_the_job_and_where_it_comes_from(folder):
    train(opened(folder), queue(folder, 0))
    data = folder.version_file(1).read_bytes()
    tensors = safetensors.torch.load(data)
    assert set(tensors) == {f"diffusion_model.{layer}.{end}" for layer in LAYERS for end in ("lora_A.weight", "lora_B.weight", "alpha")}
    assert all(tensors[f"diffusion_model.{layer}.alpha"] == JOB.alpha for layer in LAYERS)
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    meta = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    about = json.loads(meta["stepwise_grpo"])
    assert (about["run"], about["version"], about["job"]["rank"]) == ("été 1", 1, JOB.rank)
    assert meta["ss_network_alpha"] == str(JOB.alpha)


def test_the_same_weights_give_the_same_bytes():
    """safetensors alone writes metadata in an order of the moment, and the digest of a repeated version would differ."""
    weights = AnalyticPolicy().weights()
    assert len({lora.save(weights, JOB, {"run": "r", "version": 1}) for _ in range(20)}) == 1
    loaded = lora.load(lora.save(weights, JOB, {"run": "ü" * 3}))
    assert loaded.keys() == weights.keys() and all(torch.equal(loaded[name], w) for name, w in weights.items())


def test_version_0_is_the_untouched_base_with_the_jobs_own_start(folder):
    run = opened(folder)
    assert (run.version, run.digest, run.optimiser, run.ema) == (0, "", None, None)
    first = lora.first_weights(run.policy.weights(), JOB)
    assert all(torch.equal(first[name], w) for name, w in run.policy.weights().items())
    assert all((w == 0).all() == name.endswith("lora_B.weight") for name, w in first.items())
    other = lora.first_weights(run.policy.weights(), replace(JOB, seed=1))
    assert not torch.equal(other[f"{LAYERS[0]}.lora_A.weight"], first[f"{LAYERS[0]}.lora_A.weight"])


def test_versions_are_kept_and_states_that_are_not_needed_any_more_go(folder):
    run = opened(folder)
    for seed in range(4):
        train(run, queue(folder, seed))
    assert [p.name for p in sorted(folder.loras.iterdir())] == [f"v{n:06d}{end}" for n in (1, 2, 3, 4) for end in (".png", ".safetensors", "_ema.safetensors")]
    assert [p.name for p in sorted(folder.state.iterdir())] == ["v000003.safetensors", "v000004.safetensors"]


# resume


def straight(folder: RunFolder, count: int) -> list[bytes]:
    """``count`` experiences trained in one process; returns them as the graph wrote them."""
    run, written = opened(folder), []
    for seed in range(count):
        path = queue(folder, seed)
        written.append(path.read_bytes())
        train(run, path)
        path.unlink()
    return written


def feed(folder: RunFolder, run: GraphRun, data: bytes) -> None:
    folder.queue(data)
    path = folder.waiting()[0]
    train(run, path)
    path.unlink()


def test_four_experiences_in_one_process_equal_two_and_two_in_another_to_the_bit(tmp_path):
    one, two = RunFolder(tmp_path / "one", "r"), RunFolder(tmp_path / "two", "r")
    written = straight(one, 4)
    first = opened(two)
    for data in written[:2]:
        feed(two, first, data)
    second = opened(two)
    assert (second.version, second.digest) == (first.version, first.digest) and second.used == first.used
    for data in written[2:]:
        feed(two, second, data)
    assert files(two) == files(one)
    assert committed(two) == committed(one)


# crashes


class Crash(BaseException):
    """The process dies here."""


def crash_after(monkeypatch, writes: int) -> None:
    """Die as soon as the trainer has made so many writes of a commit."""
    done = []

    def counted(write):
        def wrapper(*args, **kwargs):
            write(*args, **kwargs)
            done.append(write)
            if len(done) == writes:
                raise Crash

        return wrapper

    monkeypatch.setattr(live_run, "write_whole", counted(live_run.write_whole))
    for name in ("append_event", "write_latest"):
        monkeypatch.setattr(RunFolder, name, counted(getattr(RunFolder, name)))


WRITES = ("picture", "version", "average", "state", "event", "pointer")


@pytest.mark.parametrize("committed_before", [0, 1])
@pytest.mark.parametrize("writes", range(1, len(WRITES) + 1), ids=WRITES)
def test_a_crash_after_any_write_of_a_commit_loses_nothing_and_repeats_to_the_bit(writes, committed_before, tmp_path, monkeypatch):
    one, two = RunFolder(tmp_path / "one", "r"), RunFolder(tmp_path / "two", "r")
    written = straight(one, committed_before + 1)
    run = opened(two)
    for data in written[:-1]:
        feed(two, run, data)
    two.queue(written[-1])
    path = two.waiting()[0]
    crash_after(monkeypatch, writes)
    with pytest.raises(Crash):
        train(run, path)
    monkeypatch.undo()

    assert two.waiting() == [path] and path.read_bytes() == written[-1]
    again = opened(two)
    if writes == len(WRITES):
        assert again.version == committed_before + 1 and digest_of(written[-1]) in again.used  # the pointer is the commit
    else:
        assert again.version == committed_before and digest_of(written[-1]) not in again.used
        assert len(two.events()) == committed_before
        train(again, path)
    assert committed(two) == committed(one)
    assert {name: data for name, data in files(two).items() if name in files(one)} == files(one)
    assert two.latest() == one.latest()


def test_there_are_as_many_writes_in_a_commit_as_the_crashes_cover_and_the_pointer_is_the_last(folder, monkeypatch):
    order = []

    def recorded(write, name):
        return lambda *arguments: (order.append(name(*arguments)), write(*arguments))

    monkeypatch.setattr(live_run, "write_whole", recorded(live_run.write_whole, lambda path, data: path.parent.name))
    monkeypatch.setattr(RunFolder, "append_event", recorded(RunFolder.append_event, lambda *_: "event"))
    monkeypatch.setattr(RunFolder, "write_latest", recorded(RunFolder.write_latest, lambda *_: "pointer"))
    train(opened(folder), queue(folder, 0))
    assert order == [folder.name, folder.name, folder.name, "state", "event", "pointer"]
    assert len(order) == len(WRITES)


# choosy


def test_another_runs_job_is_refused(folder):
    path = queue(folder, 0)
    with pytest.raises(RefusedExperience, match="another base model, targets, rank or alpha"):
        train(GraphRun(folder, replace(JOB, alpha=8.0), AnalyticPolicy(JOB)), path)


def test_an_experience_of_a_version_that_does_not_exist_is_refused(folder):
    folder.queue(packed(AnalyticPolicy(), PLAN, 0, Origin(run=folder.name, version=3, digest="d")))
    with pytest.raises(RefusedExperience, match="rolled out with version 3, but the run is at version 0"):
        train(opened(folder), folder.waiting()[0])


def late(folder: RunFolder, versions: int, made_with: int) -> tuple[GraphRun, Path]:
    """A run at version ``versions`` and an experience that an earlier version made."""
    run = opened(folder)
    for seed in range(versions):
        path = queue(folder, seed)
        train(run, path)
        path.unlink()
    return run, queue(folder, 100, version=made_with)


@pytest.mark.parametrize("made_with", [0, 1])
def test_an_experience_that_is_too_old_is_dropped_and_nothing_changes(made_with, folder):
    run, path = late(folder, made_with + 3, made_with)
    before = files(folder)
    with pytest.raises(DroppedExperience, match=f"rolled out with version {made_with}, the run is at {made_with + 3}: more than 2 versions old"):
        train(run, path)
    assert files(folder) == before and run.version == made_with + 3


@pytest.mark.parametrize("made_with", [0, 1])
def test_an_older_experience_within_the_limit_is_scored_against_the_version_that_made_it(made_with, folder):
    run, path = late(folder, made_with + 2, made_with)
    event = train(run, path)
    assert event["behaviour_version"] == made_with and event["version"] == made_with + 3
    assert event["graph_velocity_error"] < 1e-5  # against that version, not against the current one
    assert "ratio_error_max" not in event and event["ratio_max"] > 1e-4


def test_the_current_weights_are_what_an_older_experience_changes(folder):
    run, path = late(folder, 2, 1)
    silent = unpack(path)
    before = run.policy.weights()
    run.folder.queue(packed(graph_policy(folder, 1), plan(learning_rate=1e-12), 5, silent.origin))
    train(run, next(p for p in folder.waiting() if p != path))
    assert max((before[name] - w).abs().max() for name, w in run.policy.weights().items()) < 1e-9


def test_an_older_version_whose_file_was_replaced_is_refused(folder):
    run, path = late(folder, 2, 1)
    folder.version_file(1).write_bytes(folder.version_file(2).read_bytes())
    with pytest.raises(RefusedExperience, match="version 1 is not the one this run has"):
        train(run, path)


def test_an_older_version_whose_file_is_gone_is_refused_and_blocks_nothing(folder):
    run, path = late(folder, 2, 1)
    folder.version_file(1).unlink()
    with pytest.raises(RefusedExperience, match="version 1, .*gone"):
        train(run, path)


def foreign(folder: RunFolder, path: Path) -> Path:
    """The same experience with velocities of another model."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    tensors = safetensors.torch.load(data)
    tensors["velocities"] *= 1.5
    changed = path.with_name(f"{path.stem}x.safetensors")
    changed.write_bytes(safetensors.torch.save(tensors, header))
    return changed


@pytest.mark.parametrize("committed_before", [0, 1])
def test_a_refused_experience_leaves_no_trace_in_what_follows(committed_before, tmp_path):
    one, two = RunFolder(tmp_path / "one", "r"), RunFolder(tmp_path / "two", "r")
    written = straight(one, committed_before + 1)
    run = opened(two)
    for data in written[:-1]:
        feed(two, run, data)
    two.queue(written[-1])
    path = two.waiting()[0]
    with pytest.raises(RefusedExperience, match="another model"):
        train(run, foreign(two, path))
    train(run, path)
    assert files(two) == files(one)


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_failure_between_two_optimiser_steps_takes_the_first_one_back(error, tmp_path):
    one, two = RunFolder(tmp_path / "one", "r"), RunFolder(tmp_path / "two", "r")
    written = straight(one, 2)

    class Failing(AnalyticPolicy):
        backward_passes = -(10**6)

        def training(self):
            self.backward_passes += 1
            if self.backward_passes == 2:  # the second optimiser step
                raise error
            return super().training()

    run = opened(two, Failing(JOB))
    feed(two, run, written[0])
    before, run.policy.backward_passes = run.policy.weights(), 0
    two.queue(written[1])
    with pytest.raises(type(error)):
        train(run, two.waiting()[0])
    assert all(torch.equal(before[name], w) for name, w in run.policy.weights().items())
    train(run, two.waiting()[0])
    assert files(two) == files(one)


def test_a_lora_that_comfyuis_loader_would_not_know_is_never_written(folder):
    class Unknown(AnalyticPolicy):
        def matched_keys(self, tensors):
            return 1, 2

    run, path = opened(folder, Unknown(JOB)), queue(folder, 0)
    with pytest.raises(RefusedExperience, match="keys: 1 of 2 layers of a version file are known to its loaders"):
        train(run, path)
    run._proven = True  # a version is never written without looking again
    with pytest.raises(RefusedExperience, match="would recognise only 1 of 2 layers"):
        train(run, path)
    assert not folder.loras.exists() and folder.latest() is None and folder.events() == []
    first = lora.first_weights(run.policy.weights(), JOB)
    assert all(torch.equal(first[name], w) for name, w in run.policy.weights().items())


# the self-check


class Wrong(AnalyticPolicy):
    """Its gradients are too large by a tenth."""

    def __init__(self, job=JOB):
        super().__init__(job)
        self.parameters()[1].register_hook(lambda gradient: 1.1 * gradient)


def test_a_model_with_wrong_gradients_is_refused_before_the_first_update(folder):
    run, path = opened(folder, Wrong()), queue(folder, 0)
    before = run.policy.weights()
    with pytest.raises(RefusedExperience, match="cannot be trained rightly here. finite difference: relative error"):
        train(run, path)
    assert folder.latest() is None and all(torch.equal(before[name], w) for name, w in run.policy.weights().items())


def test_the_findings_lie_beside_the_run_and_are_made_once_for_each_opening(folder):
    run = opened(folder)
    train(run, queue(folder, 0))
    found = read_json(folder.path / "check.json")
    assert {finding["name"] for finding in found["findings"]} >= {"gradients", "finite difference", "checkpointing", "keys"}
    train(run, queue(folder, 1))
    assert read_json(folder.path / "check.json") == found
    train(opened(folder), queue(folder, 2))
    assert read_json(folder.path / "check.json")["at"] > found["at"]


# the moving average


def ema_of(folder: RunFolder, version: int) -> dict[str, torch.Tensor]:
    return lora.load(folder.version_file(version, ema=True).read_bytes())


def version_of(folder: RunFolder, version: int) -> dict[str, torch.Tensor]:
    return lora.load(folder.version_file(version).read_bytes())


def test_the_average_lies_beside_each_version_and_follows_it(folder):
    straight(folder, 3)
    average = version_of(folder, 1)
    for version in (1, 2, 3):
        now = version_of(folder, version)
        average = {name: 0.5 * w + 0.5 * now[name] for name, w in average.items()}
        found = ema_of(folder, version)
        assert all(torch.allclose(found[name], w, rtol=0, atol=1e-6) for name, w in average.items())


def test_training_goes_on_from_the_version_and_not_from_its_average(folder):
    straight(folder, 2)
    weights, average = opened(folder).policy.weights(), ema_of(folder, 2)
    assert all(torch.equal(weights[name], w) for name, w in version_of(folder, 2).items())
    assert any(not torch.equal(weights[name], w) for name, w in average.items())


def test_without_an_average_there_is_no_file_and_a_later_one_starts_afresh(folder):
    run = opened(folder)
    train(run, queue(folder, 0))
    train(run, queue(folder, 1, the_plan=plan(ema=0.0)))
    assert not folder.version_file(2, ema=True).exists() and run.ema is None
    train(run, queue(folder, 2))
    assert all(torch.equal(w, ema_of(folder, 3)[name]) for name, w in version_of(folder, 3).items())


def test_events_hold_numbers_any_reader_of_json_takes(folder):
    straight(folder, 1)
    uniform = plan("uniform", beta=0.1)
    event = train(opened(folder), queue(folder, 7, the_plan=uniform))
    assert event["reward_start"] is None  # nobody looked at the start
    json.dumps(event, allow_nan=False)


@pytest.mark.parametrize("said, kind", [("mat1 and mat2 shapes cannot be multiplied", RefusedExperience), ("CUDA out of memory", RuntimeError), ("CUDA error: busy", RuntimeError)])
def test_what_the_model_cannot_compute_is_refused_but_too_little_memory_may_pass(said, kind, folder, monkeypatch):
    path, run = queue(folder, 0), opened(folder)

    def fail(*_):
        raise RuntimeError(said)

    monkeypatch.setattr(run.policy, "velocity", fail)
    with pytest.raises(kind, match=said):
        train(run, path)
    run._proven = True  # also in the update itself
    with pytest.raises(kind, match=said):
        train(run, path)
    monkeypatch.undo()
    assert train(run, path)["version"] == 1


# memory


def test_the_automatic_split_the_estimate_and_what_was_said_are_in_the_event(folder):
    said, policy = [], AnalyticPolicy(JOB)
    policy.memory = 7_000  # weights and LoRA take 2000, a row 1000
    path = queue(folder, 0)
    event = opened(folder, policy).train(path, "id", said.append)
    assert (event["rows_per_call"], event["memory_estimate_bytes"], event["memory_peak_bytes"]) == (5, 7_000, None)
    assert said == ["estimated 0.00668 MiB of 0.00668 MiB, 5 rows a call"]


def test_the_split_that_was_asked_for_is_kept(folder):
    policy, the_plan = AnalyticPolicy(JOB), replace(PLAN, update=replace(PLAN.update, rows_per_call=3))
    path, run = queue(folder, 0, the_plan=the_plan), opened(folder, policy)
    run.prove(probe_of(unpack(path)))
    before = policy.calls
    assert train(run, path)["rows_per_call"] == 3
    assert policy.calls - before == 2 * 2 * 6  # 16 rows of each of two optimiser steps in calls of three, for old densities and for gradients


def test_where_not_even_one_row_fits_it_is_refused_before_the_network_is_called(folder):
    policy = AnalyticPolicy(JOB)
    policy.memory = 2_500
    path, before = queue(folder, 0), policy.calls
    with pytest.raises(RefusedExperience, match="one row of this update needs"):
        train(opened(folder, policy), path)
    assert policy.calls == before and folder.latest() is None


def test_each_experience_says_whether_blocks_are_computed_again(folder):
    policy = AnalyticPolicy(JOB)
    for seed, setting in enumerate(("on", "off", "auto")):
        train(opened(folder, policy), queue(folder, seed, the_plan=replace(PLAN, update=replace(PLAN.update, checkpointing=setting))))
        assert policy.checkpointing == setting


@pytest.mark.parametrize("share", [True, False])
def test_the_card_is_free_before_the_new_version_is_announced(share, folder, monkeypatch):
    policy, seen = AnalyticPolicy(JOB), []
    write = RunFolder.write_latest
    monkeypatch.setattr(RunFolder, "write_latest", lambda self, latest: (seen.append(policy.parked), write(self, latest)))
    train(opened(folder, policy), queue(folder, 0, the_plan=replace(PLAN, update=replace(PLAN.update, share_gpu=share))))
    assert seen == [int(share)] and policy.parked == int(share)


def test_the_card_is_free_after_a_failure_as_well(folder, monkeypatch):
    policy = AnalyticPolicy(JOB)
    run, path = opened(folder, policy), queue(folder, 0)
    monkeypatch.setattr(graph_run, "update", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("CUDA out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        train(run, path)
    assert policy.parked == 1
