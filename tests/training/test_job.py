"""A run on disk: names, whole files, torn lines, and who says what became of an experience."""

import errno
import json
import os
import time

import pytest

from stepwise_grpo.training import job
from stepwise_grpo.training.job import RunFolder, all_runs, check_run_name, digest_of, read_json, retry_sharing, write_json, write_whole


@pytest.mark.parametrize(
    "name", ["my_first_run", "a", "7", "v1.2", "run 3", "a-b+c", "été", "日本語", "прогон 2", "x" * 64, "confetti", "console.log", "lock", "inbox"]
)
def test_plain_names_are_taken_as_they_are(name):
    assert check_run_name(name) == name


def test_a_name_typed_in_two_ways_is_one_name():
    assert check_run_name("e\u0301te\u0301") == "\u00e9t\u00e9"


HOSTILE = [
    *("", " ", "   ", ".", "..", "../x", "..\\x", "a/b", "a\\b", "/etc", "C:\\x", "a..b", ".hidden", "trailing.", "trailing ", " leading", "-rf"),
    *("a\n", "\na", "a\tb", "a\0b", "a:b", "a*b", "a?b", 'a"b', "a<b", "a|b", "~", "$HOME", "%TEMP%", "a;b", "a\u202eb", "a\u200bb"),
    *("x" * 65, "x" * 300, "日" * 64 + "x", "é" * 101),
    *("CON", "con", "con.txt", "Aux", "NUL.safetensors", "COM1", "lpt9.x", "con .x", "COM\u00b9"),
    *("trainer.json", "trainer.lock", "comfyui.json", "Trainer.JSON"),
]


@pytest.mark.parametrize("name", HOSTILE, ids=[repr(name[:20]) for name in HOSTILE])
def test_names_that_could_leave_the_folder_or_mean_something_else_are_refused_in_words(name):
    with pytest.raises(ValueError, match="^run name .* is not usable: take 1 to 64 letters"):
        check_run_name(name)


def test_the_refusal_of_a_long_name_is_short():
    with pytest.raises(ValueError) as refusal:
        check_run_name("x" * 5000)
    assert len(str(refusal.value)) < 250


def test_every_path_of_a_run_lies_in_the_output_folder(tmp_path):
    folder = RunFolder(tmp_path, "été 1")
    for path in (folder.inbox, folder.rejected, folder.dropped, folder.state, folder.version_file(12), folder.version_file(12, ema=True)):
        assert tmp_path in path.parents
    assert folder.version_file(12).relative_to(tmp_path).as_posix() == "loras/stepwise_grpo/été 1/v000012.safetensors"
    assert folder.lora_name(12) == os.path.join("stepwise_grpo", "été 1", "v000012.safetensors")


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_scraps(step, tmp_path, monkeypatch):
    path = tmp_path / "folder" / "file.json"
    write_whole(path, b"old")
    monkeypatch.setattr(job.os, step, no_space)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_a_full_disk_in_the_middle_of_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_whole(path, b"old")

    def full(name, mode):
        file = open(name, mode)
        file.write(b"ne")
        file.close()
        no_space()

    monkeypatch.setattr(job, "open", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_a_value_that_is_no_json_is_refused_before_anything_is_written(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    for value in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == {"x": 1} and read_json(tmp_path / "missing.json") is None


def test_a_windows_sharing_violation_is_tried_again(tmp_path, monkeypatch):
    attempts, replace = [], os.replace

    def busy(source, target):
        attempts.append(1)
        if len(attempts) < 4:
            raise PermissionError(errno.EACCES, "The process cannot access the file because it is being used by another process")
        replace(source, target)

    monkeypatch.setattr(job.os, "replace", busy)
    write_whole(tmp_path / "file", b"data")
    assert len(attempts) == 4 and (tmp_path / "file").read_bytes() == b"data"


def test_a_file_that_stays_locked_is_reported_in_the_end():
    def locked():
        raise PermissionError("locked")

    start = time.monotonic()
    with pytest.raises(PermissionError, match="locked"):
        retry_sharing(locked, seconds=0.2)
    assert 0.2 <= time.monotonic() - start < 1


def test_a_job_is_written_once_and_a_later_change_names_the_widget(tmp_path):
    folder = RunFolder(tmp_path, "r")
    settings = {"base": {"kind": "demo"}, "rank": 16, "alpha": 32.0}
    folder.agree_on_job(settings)
    folder.queue(b"experience")
    folder.agree_on_job(dict(settings))
    assert folder.job() == settings
    for change, key in (
        ({**settings, "rank": 8}, "rank"),
        ({**settings, "targets": "all"}, "targets"),
        ({**settings, "alpha": 8.0}, "alpha"),
        ({"base": {"kind": "demo"}, "rank": 16, "alpha": 8.0}, "alpha"),
    ):
        with pytest.raises(ValueError, match=rf"run 'r' was started with {key} = .*; this graph says .*Set {key} back, or choose another run name"):
            folder.agree_on_job(change)
    assert folder.job() == settings


FILE = {"kind": "diffusion_models", "name": "a.safetensors", "size": 1, "sha256": "x"}
LORA = {"name": "s.safetensors", "strength": 0.5, "size": 1, "sha256": "y"}


@pytest.mark.parametrize(
    "known, new, says",
    [
        (FILE, {"kind": "demo"}, "the base model 'a.safetensors'; this graph has another one, or the file has changed"),
        ({"kind": "demo"}, FILE, "the base model 'the demo model'; this graph has another one"),
        ({**FILE, "loras": [LORA]}, {**FILE, "sha256": "z"}, "the base model 'a.safetensors'; this graph has another one"),
        (FILE, {**FILE, "weight_dtype": "fp8_e5m2"}, "weight_dtype = default; this graph says fp8_e5m2"),
        ({**FILE, "weight_dtype": "fp8_e5m2"}, FILE, "weight_dtype = fp8_e5m2; this graph says default"),
        (FILE, {**FILE, "loras": [LORA]}, "other LoRAs on the base model: none; this graph has 's.safetensors' at 0.5"),
        ({**FILE, "loras": [LORA]}, FILE, "other LoRAs on the base model: 's.safetensors' at 0.5; this graph has none"),
        ({**FILE, "loras": [LORA]}, {**FILE, "loras": [{**LORA, "strength": 1.0}]}, "other LoRAs on the base model: 's.safetensors' at 0.5; this graph has 's.safetensors' at 1"),
        ({**FILE, "loras": [LORA]}, {**FILE, "loras": [{**LORA, "sha256": "z"}]}, "other LoRAs on the base model: 's.safetensors' at 0.5; this graph has the same, but a file has changed"),
    ],
)
def test_another_base_model_is_told_by_what_differs(known, new, says, tmp_path):
    folder = RunFolder(tmp_path, "r")
    folder.agree_on_job({"base": known})
    folder.queue(b"experience")
    with pytest.raises(ValueError, match=f"run 'r' was started with {says}") as caught:
        folder.agree_on_job({"base": new})
    assert str(caught.value).endswith(" Put it back, or choose another run name for a new run.") and folder.job() == {"base": known}


def test_experiences_wait_in_the_order_they_came_and_half_written_ones_are_not_seen(tmp_path):
    folder = RunFolder(tmp_path, "r")
    ids = [folder.queue(bytes([i])) for i in range(5)]
    assert [p.stem.split("-")[1] for p in folder.waiting()] == ids == [digest_of(bytes([i])) for i in range(5)]
    (folder.inbox / ".0-abc.safetensors.77.part").write_bytes(b"half")
    (folder.inbox / ".0-abc.safetensors").write_bytes(b"half")
    assert len(folder.waiting()) == 5


def event(version: int, **more):
    return {"version": version, "experience": f"id{version}", "text": "ü\u2028ü", **more}


def run_with(tmp_path, committed: int) -> RunFolder:
    folder = RunFolder(tmp_path, "r")
    for version in range(1, committed + 1):
        folder.append_event(event(version))
    folder.write_latest({"version": committed, "file": "f", "digest": "d", "experience": "e"})
    return folder


def test_events_come_back_in_order_with_any_text(tmp_path):
    assert run_with(tmp_path, 3).events() == [event(1), event(2), event(3)]


def test_a_line_cut_anywhere_by_a_crash_is_skipped_and_the_next_one_is_whole(tmp_path):
    whole = json.dumps(event(3), ensure_ascii=False).encode("utf-8")
    for length in range(1, len(whole)):
        folder = RunFolder(tmp_path / str(length), "r")
        folder.append_event(event(1))
        folder.append_event(event(2))
        with open(folder.path / "events.jsonl", "ab") as file:
            file.write(whole[:length])
        folder.write_latest({"version": 2})
        assert folder.events() == [event(1), event(2)]
        folder.append_event(event(3, again=True))
        folder.write_latest({"version": 3})
        assert folder.events() == [event(1), event(2), event(3, again=True)]


def test_an_event_counts_once_its_version_is_committed_and_the_last_of_several_wins(tmp_path):
    folder = run_with(tmp_path, 2)
    folder.append_event(event(3, first=True))
    assert folder.events() == [event(1), event(2)]
    folder.append_event(event(3, second=True))
    folder.write_latest({"version": 3})
    assert folder.events()[-1] == event(3, second=True)


def test_lines_that_are_json_but_no_events_are_skipped(tmp_path):
    folder = run_with(tmp_path, 1)
    with open(folder.path / "events.jsonl", "ab") as file:
        file.write(b'3\n[]\n"x"\n{}\nnull\n\n{"version": null}\n')
    assert folder.events() == [event(1)]


def test_the_fate_of_an_experience_is_told(tmp_path):
    folder = run_with(tmp_path, 1)
    id = folder.queue(b"foreign")
    assert folder.fate(id) is None and folder.fate("id1")["version"] == 1
    folder.put_aside(folder.waiting()[0], "rejected", "it was foreign")
    assert folder.fate(id) == {"rejected": "it was foreign"} and folder.waiting() == []
    assert [p.read_bytes() for p in folder.rejected.glob("*.safetensors")] == [b"foreign"]


def test_a_crash_between_the_reason_and_the_move_loses_no_experience(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path, "r")
    folder.queue(b"foreign")
    path, replace = folder.waiting()[0], os.replace
    monkeypatch.setattr(job.os, "replace", lambda a, b: no_space() if a == path else replace(a, b))
    with pytest.raises(OSError):
        folder.put_aside(path, "dropped", "too old")
    monkeypatch.undo()
    assert folder.waiting() == [path]
    folder.put_aside(path, "dropped", "too old")
    assert folder.waiting() == [] and len(list(folder.dropped.iterdir())) == 2


def test_a_trainer_is_alive_while_its_heartbeat_is_fresh(tmp_path):
    folder = RunFolder(tmp_path, "r")
    beat = tmp_path / "stepwise_grpo" / "trainer.json"
    assert not folder.trainer_is_alive()
    write_json(beat, {"at": time.time()})
    assert folder.trainer_is_alive()
    write_json(beat, {"at": time.time(), "stopped": True})
    assert not folder.trainer_is_alive()
    write_json(beat, {"at": time.time() - 60})
    assert not folder.trainer_is_alive()


def test_all_runs_are_folders_with_a_usable_name(tmp_path):
    assert all_runs(tmp_path) == []
    for name in ("b", "a", ".hidden", "con"):
        (tmp_path / "stepwise_grpo" / name).mkdir(parents=True)
    write_json(tmp_path / "stepwise_grpo" / "trainer.json", {})
    assert [run.name for run in all_runs(tmp_path)] == ["a", "b"]


def test_a_run_from_before_a_setting_existed_goes_on_at_its_default(tmp_path):
    folder = RunFolder(tmp_path, "r")
    old = {"base": {"kind": "demo"}, "rank": 16, "alpha": 32.0}
    folder.agree_on_job(old)
    folder.queue(b"experience")
    folder.agree_on_job({**old, "optimiser": "adamw", "start": None, "pattern": ""})
    with pytest.raises(ValueError, match="was started with optimiser = 'adamw'; this graph says 'adamw8bit'"):
        folder.agree_on_job({**old, "optimiser": "adamw8bit"})


def test_a_run_without_version_and_queue_may_still_change_its_settings(tmp_path):
    """The first iteration was refused, say: its name is not used up."""
    folder = RunFolder(tmp_path, "r")
    folder.agree_on_job({"base": {"kind": "demo"}, "rank": 16})
    folder.agree_on_job({"base": {"kind": "demo"}, "rank": 8})
    assert folder.job()["rank"] == 8
    folder.queue(b"experience")
    with pytest.raises(ValueError, match="was started with rank = 8; this graph says 4"):
        folder.agree_on_job({"base": {"kind": "demo"}, "rank": 4})
