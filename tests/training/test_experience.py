"""Experience files: bit-exact, recognisable, and refused in words when they are not whole."""

import hashlib
import json
import math
import pickle
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tests.analytic import JOB, AnalyticPolicy, credit_for, experience, packed, plan, prompt, trajectory_of
from stepwise_grpo.training.config import Origin, UpdateSettings
from stepwise_grpo.training.core.schedule import Schedule
from stepwise_grpo.training.experience import FORMAT, KEY, NewerFormat, UnreadableExperience, pack, unpack
from stepwise_grpo.training.job import RunFolder
from stepwise_grpo.training.trajectory import Credit


@pytest.fixture
def made():
    policy, the_plan = AnalyticPolicy(), plan(beta=0.1, rows_per_call=17)
    prompts = [prompt(0.5, 3, tokens=2), prompt(-0.5, 7, tokens=5)]
    prompts[0].conditioning[0][1].update(guidance=3.5, half=torch.randn(1, 4).to(torch.bfloat16), nothing=None, flag=True, names=["a", "ü"])
    trajectory = trajectory_of(policy, the_plan, seed=11, prompts=prompts, origin=Origin(run="r", version=4, digest="d" * 64))
    return trajectory, credit_for(policy, trajectory, the_plan)[0], the_plan.update


def bytes_of(made, **more) -> bytes:
    trajectory, credit, settings = made
    return pack(more.get("trajectory", trajectory), more.get("credit", credit), more.get("job", JOB), more.get("settings", settings))


def read(data: bytes, tmp_path):
    path = tmp_path / "e.safetensors"
    path.write_bytes(data)
    return unpack(path)


def rewritten(data: bytes, change) -> bytes:
    """The file after ``change(tensors, meta)``."""
    tensors = safetensors.torch.load(data)
    meta = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"][KEY])
    meta = change(tensors, meta) or meta
    return safetensors.torch.save(tensors, {KEY: json.dumps(meta)})


def test_everything_comes_back_bit_for_bit(made, tmp_path):
    trajectory, credit, settings = made
    e = read(bytes_of(made), tmp_path)
    assert torch.equal(e.states, trajectory.states) and torch.equal(e.velocities, trajectory.velocities)
    assert torch.equal(e.rewards, credit.rewards) and torch.equal(e.advantages, credit.advantages)
    assert e.schedule == trajectory.schedule and (e.cfg, e.origin, e.job, e.settings) == (trajectory.cfg, trajectory.origin, JOB, settings)
    assert e.texts == ["mean 0.5", "mean -0.5"] and e.group_size == 4


def test_the_conditioning_comes_back_in_its_own_dtype(made, tmp_path):
    trajectory, _, _ = made
    e = read(bytes_of(made), tmp_path)
    for given, found in zip(trajectory.prompts, e.conditioning, strict=True):
        (cond, options), (found_cond, found_options) = given.conditioning[0], found[0]
        assert torch.equal(cond, found_cond) and options.keys() == found_options.keys()
        for key, value in options.items():
            same = (
                torch.equal(value, found_options[key]) and value.dtype == found_options[key].dtype
                if isinstance(value, torch.Tensor)
                else value == found_options[key]
            )
            assert same, key
    assert torch.equal(e.negative[0][0], trajectory.negative[0][0])


def test_times_that_floats_cannot_write_in_decimals_come_back_exactly(made, tmp_path):
    times = (0.9999899864196777, 2 / 3, 0.1 + 0.2, 1e-3, 0.0)
    trajectory, credit, _ = made
    odd = Schedule(times, "precise", 1.2345678901234567, floor_first=False)
    cut = replace(trajectory, states=trajectory.states[:5], velocities=trajectory.velocities[:4], schedule=odd)
    cut_credit = replace(credit, rewards=credit.rewards[:5], advantages=credit.advantages[:4], schedule=odd)
    assert read(bytes_of(made, trajectory=cut, credit=cut_credit), tmp_path).schedule == odd


def test_states_of_video_and_audio_shapes_pass(made, tmp_path):
    trajectory, credit, _ = made
    for shape in ((2, 3, 2, 2), (5,), (4, 9)):
        states = torch.randn(6, 8, *shape)
        e = read(bytes_of(made, trajectory=replace(trajectory, states=states, velocities=states[1:].clone())), tmp_path)
        assert torch.equal(e.states, states)


def test_uniform_credit_leaves_nan_where_nobody_looked(tmp_path):
    e = experience(AnalyticPolicy(), plan("uniform"), tmp_path)
    assert e.rewards[:-1].isnan().all() and e.rewards[-1].isfinite().all()


def test_the_id_is_the_sha256_of_the_content_and_the_same_content_is_queued_once(made, tmp_path):
    data, folder = bytes_of(made), RunFolder(tmp_path, "r")
    assert folder.queue(data) == hashlib.sha256(data).hexdigest() == folder.queue(bytes_of(made))
    assert len(folder.waiting()) == 1
    assert hashlib.sha256(folder.waiting()[0].read_bytes()).hexdigest() in folder.waiting()[0].name


def test_other_settings_are_another_experience(made):
    trajectory, credit, settings = made
    ids = {
        hashlib.sha256(data).hexdigest()
        for data in (
            bytes_of(made),
            bytes_of(made, settings=UpdateSettings()),
            bytes_of(made, credit=replace(credit, advantages=credit.advantages * 2)),
        )
    }
    assert len(ids) == 3


def test_a_file_cut_anywhere_is_refused(made, tmp_path):
    data = bytes_of(made)
    header = 8 + int.from_bytes(data[:8], "little")
    lengths = {0, 1, 7, 8, 9, header // 2, header - 1, header, header + 1, len(data) - 1, *range(0, len(data), len(data) // 37)}
    for length in sorted(lengths - {len(data)}):
        with pytest.raises(UnreadableExperience, match=r"e\.safetensors is cut short or not an experience file"):
            read(data[:length], tmp_path)


def test_damage_in_the_header_or_at_the_end_is_refused(made, tmp_path):
    data = bytes_of(made)
    for broken in (b"\xff" * 8 + data[8:], data[:20] + b"\x00" + data[21:], data + b"more", b"\x00" * len(data), b"PK\x03\x04" + data):
        with pytest.raises(UnreadableExperience):
            read(broken, tmp_path)


def test_a_safetensors_file_of_another_program_is_refused(tmp_path):
    for meta in (None, {"format": "pt"}, {KEY: "not json"}, {KEY: "[]"}, {KEY: '"text"'}, {KEY: "null"}):
        with pytest.raises(UnreadableExperience):
            read(safetensors.torch.save({"a": torch.zeros(1)}, meta), tmp_path)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def test_a_pickle_is_never_opened(tmp_path):
    torch.save({"states": torch.zeros(1)}, tmp_path / "t.pt")
    for data in (pickle.dumps(Bomb()), (tmp_path / "t.pt").read_bytes()):
        with pytest.raises(UnreadableExperience):
            read(data, tmp_path)


def test_a_newer_format_is_told_from_a_broken_file(made, tmp_path):
    newer = rewritten(bytes_of(made), lambda tensors, meta: {"format": FORMAT + 1, "unheard": "of"})
    with pytest.raises(NewerFormat, match=rf"has format {FORMAT + 1}; this trainer reads {FORMAT}. Update the pack"):
        read(newer, tmp_path)


@pytest.mark.parametrize("name", ["states", "velocities", "advantages"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_are_refused_by_name(name, bad, made, tmp_path):
    def change(tensors, meta):
        tensors[name][2, 1] = bad

    with pytest.raises(UnreadableExperience, match=f"{name} contain NaN or infinity"):
        read(rewritten(bytes_of(made), change), tmp_path)


def test_final_rewards_that_are_no_numbers_are_refused(made, tmp_path):
    def change(tensors, meta):
        tensors["rewards"][-1, 0] = math.nan

    with pytest.raises(UnreadableExperience, match="rewards contain NaN or infinity"):
        read(rewritten(bytes_of(made), change), tmp_path)


def drop(key):
    def change(tensors, meta):
        del tensors[key]

    return change


def put(path, value):
    def change(tensors, meta):
        at = meta
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def cut(name, index):
    def change(tensors, meta):
        tensors[name] = tensors[name][index].contiguous()

    return change


@pytest.mark.parametrize(
    "change",
    [
        drop("states"),
        drop("rewards"),
        drop("prompt/0/0/0"),
        cut("states", slice(1, None)),
        cut("velocities", slice(1, None)),
        cut("advantages", (slice(None), slice(0, 7))),
        cut("rewards", slice(1, None)),
        cut("rewards", (slice(None), slice(0, 7))),
        put(["schedule", "times"], [1.0, 0.0]),
        put(["schedule", "times"], [1.0, 0.8, 0.6, 0.4, 0.2, 0.1]),
        put(["schedule", "law"], "euler"),
        put(["schedule", "eta"], 0.0),
        put(["schedule", "eta"], 7),
        put(["settings", "learning_rate"], -1),
        put(["settings", "learning_rat"], 1e-3),
        put(["settings", "clip"], "wide"),
        put(["job", "rank"], 0),
        put(["job", "base"], None),
        put(["origin"], 3),
        put(["prompts"], []),
        put(["prompts"], 5),
        put(["texts"], ["one"]),
        lambda tensors, meta: {key: value for key, value in meta.items() if key != "cfg"},
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused(change, made, tmp_path):
    with pytest.raises(UnreadableExperience, match="does not hold together"):
        read(rewritten(bytes_of(made), change), tmp_path)


def test_three_prompts_do_not_share_eight_rows(made, tmp_path):
    def change(tensors, meta):
        meta["prompts"].append(meta["prompts"][0])
        meta["texts"].append("third")

    with pytest.raises(UnreadableExperience, match="does not hold together"):
        read(rewritten(bytes_of(made), change), tmp_path)


def test_the_record_tells_who_earned_what_and_how_long_it_took(made, tmp_path):
    trajectory, credit, _ = made
    about = read(bytes_of(made), tmp_path).about
    assert about["seed"] == 11 and about["credit"] == "centred" and about["reward"] == {"reward": "brightness"}
    assert about["evaluations"] == trajectory.evaluations + credit.evaluations
    assert set(about["seconds"]) == {"rollout", "preview", "decode", "reward"}


def test_packing_takes_nothing_away_from_what_it_packs(made):
    trajectory, credit, _ = made
    before = trajectory.states.clone()
    assert isinstance(credit, Credit) and packed(AnalyticPolicy(), plan())
    bytes_of(made)
    assert torch.equal(trajectory.states, before)
