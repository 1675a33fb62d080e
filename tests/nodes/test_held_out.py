"""Held-Out Pictures on a real server: what is kept, what it says, and what it refuses. No trainer runs here."""

import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from stepwise_grpo.tests.nodes.graphs import add, change, find, first_loop, insert, version_by_hand
from stepwise_grpo.tools.server import ComfyError
from stepwise_grpo.training.job import RunFolder, write_whole
from stepwise_grpo.training.looks import look_picture, read_looks

LIVE, NODE, LIST = "StepwiseGRPO_LiveLoRA", "StepwiseGRPO_HeldOutPictures", "StepwiseGRPO_PromptList"
PROMPTS = "a big red circle at the top\na small blue square at the bottom\na big green cross at the left"
NEEDED = {"StepwiseGRPO_DemoModel", LIVE, "CLIPTextEncode", "EmptySD3LatentImage", "BasicScheduler", "StepwiseGRPO_PlacementReward"}


def held_out(server, run, **widgets):
    """Demo model -> Live LoRA -> Held-Out Pictures of three prompts in three steps."""
    graph = {id: node for id, node in first_loop(server, run).items() if node["class_type"] in NEEDED}
    demo, latent, sigmas, negative = (find(graph, kind) for kind in ("StepwiseGRPO_DemoModel", "EmptySD3LatentImage", "BasicScheduler", "CLIPTextEncode"))
    prompts = add(graph, LIST, clip=[demo, 1], prompts=PROMPTS, prompts_per_iteration=3, iteration=0, seed=0)
    inputs = {"cfg": 1.0, "seed": 7, "every": 1, "rows_per_call": 0, "reward": [find(graph, "StepwiseGRPO_PlacementReward"), 0], **widgets}
    add(graph, NODE, model=[find(graph, LIVE), 0], vae=[demo, 2], positive=[prompts, 0], negative=[negative, 0], latent_image=[latent, 0], sigmas=[sigmas, 0], **inputs)
    return graph


def says(server, graph):
    """What the node says."""
    return server.run(graph)[find(graph, NODE)]["text"][0]


def looked(server, run, **widgets):
    """Run it; the look of the newest version looked at, and the bytes of its picture."""
    server.run(held_out(server, run, **widgets))
    return newest(RunFolder(server.output, run))


def newest(run):
    look = read_looks(run)[-1]
    return look, look_picture(run, look["version"]).read_bytes()


def but_time(look):
    return {key: value for key, value in look.items() if key != "at"}


def pixels(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=float)


def test_a_look_is_kept_and_shown(server):
    graph = held_out(server, "looks é")
    outputs = {name: add(graph, kind, **{socket: [find(graph, NODE), number]}) for name, kind, socket, number in (("all", "PreviewImage", "images", 0), ("mean", "PreviewAny", "source", 1))}
    shown = server.run(graph)
    look, picture = newest(RunFolder(server.output, "looks é"))
    assert set(look) == {"version", "digest", "at", "series", "reward", "rewards", "reward_mean", "reward_std", "prompts", "seed"}
    assert (look["version"], look["digest"], look["seed"], look["reward"]) == (0, "", 7, {"reward": "placement"})
    assert sorted(look["prompts"]) == sorted(PROMPTS.split("\n"))
    assert re.fullmatch("[0-9a-f]{16}", look["series"]) and len(look["rewards"]) == 3
    assert (look["reward_mean"], look["reward_std"]) == pytest.approx((np.mean(look["rewards"]), np.std(look["rewards"])))
    assert float(shown[outputs["mean"]]["text"][0]) == pytest.approx(look["reward_mean"])
    assert shown[find(graph, NODE)]["text"] == [f"version 0: held-out reward {look['reward_mean']:.3f}"]
    assert pixels(picture).shape == (256, 256, 3)  # two by two of 128 px
    singles = [pixels(server.picture(image)) for image in shown[outputs["all"]]["images"]]
    tiles = [pixels(picture)[y : y + 128, x : x + 128] for y in (0, 128) for x in (0, 128)]
    assert len(singles) == 3 and all(np.abs(a - b).mean() < 4 for a, b in zip(singles, tiles))  # from left to right, then down
    (contact,) = shown[find(graph, NODE)]["images"]
    assert contact["type"] == "temp" and np.abs(pixels(server.picture(contact)) - pixels(picture)).mean() < 4


def test_the_same_run_again_gives_the_same_bits(server):
    """Another run's name, because ComfyUI would serve the same graph from its cache."""
    one, two = looked(server, "once"), looked(server, "twice")
    assert but_time(one[0]) == but_time(two[0]) and one[1] == two[1]


def test_a_look_made_again_leaves_the_kept_one_alone(server):
    first, _ = looked(server, "again é")
    again, _ = looked(server, "again é", every=3)  # another widget: ComfyUI runs the node again
    assert again == first


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_per_call_changes_nothing(server, rows):
    one, two = looked(server, "all at once"), looked(server, f"by {rows}", rows_per_call=rows)
    assert one[0]["series"] == two[0]["series"]
    assert one[0]["rewards"] == pytest.approx(two[0]["rewards"], abs=1e-3)
    assert np.abs(pixels(one[1]) - pixels(two[1])).mean() < 1


def test_a_trained_version_gets_a_look_of_its_own_in_the_same_series(server):
    before, picture = looked(server, "trained")
    run = version_by_hand(server.output, "trained", 1, size=0.3)
    graph = held_out(server, "trained")
    text = says(server, graph)
    after, other = newest(run)
    assert [look["version"] for look in read_looks(run)] == [0, 1]
    assert after["digest"] == run.latest()["digest"] and after["series"] == before["series"]
    assert np.abs(pixels(picture) - pixels(other)).mean() > 2 and after["rewards"] != before["rewards"]
    assert text == f"version 1: held-out reward {after['reward_mean']:.3f} (version 0: {before['reward_mean']:.3f})"


def other_prompts(graph):
    return change(graph, LIST, prompts=PROMPTS.replace("red", "blue"))


def other_reward(graph):
    return change(graph, NODE, reward=[add(graph, "StepwiseGRPO_WarmthReward", toward="warm"), 0])


def no_reward(graph):
    del graph[find(graph, NODE)]["inputs"]["reward"]
    return graph


def untagged_prompt(words):
    return lambda graph: change(graph, NODE, positive=[add(graph, "CLIPTextEncode", clip=[find(graph, "StepwiseGRPO_DemoModel"), 1], text=words), 0])


OTHERS = {
    "prompts": other_prompts,
    "reward": other_reward,
    "no reward": no_reward,
    "seed": lambda graph: change(graph, NODE, seed=8),
    "cfg": lambda graph: change(graph, NODE, cfg=2.0),
    "steps": lambda graph: change(graph, "BasicScheduler", steps=4),
    "size": lambda graph: change(graph, "EmptySD3LatentImage", width=64),
    "one prompt": untagged_prompt("a big red circle"),
    "another prompt": untagged_prompt("a big blue circle"),
    "negative": lambda graph: change(change(graph, NODE, cfg=2.0), "CLIPTextEncode", text="a big red circle"),
}


def test_whatever_changes_the_pictures_begins_a_new_series(server):
    series = {"as it was": looked(server, "series")[0]["series"]}
    for name, other in OTHERS.items():
        server.run(other(held_out(server, "series")))
        series[name] = newest(RunFolder(server.output, "series"))[0]["series"]
    assert len(set(series.values())) == len(series), series


def test_a_negative_prompt_without_effect_does_not(server):
    graph = change(held_out(server, "no effect"), "CLIPTextEncode", text="a big red circle")
    server.run(graph)
    assert newest(RunFolder(server.output, "no effect"))[0]["series"] == looked(server, "as usual")[0]["series"]


def test_without_a_reward_it_only_shows(server):
    graph = no_reward(held_out(server, "only shown"))
    mean = add(graph, "PreviewAny", source=[find(graph, NODE), 1])
    outputs = server.run(graph)
    look, _ = newest(RunFolder(server.output, "only shown"))
    assert outputs[find(graph, NODE)]["text"] == ["version 0: 3 held-out pictures"] and outputs[mean]["text"] == ["0.0"]
    assert [look[key] for key in ("reward", "rewards", "reward_mean", "reward_std")] == [None] * 4


def test_every_passes_versions_over_and_shows_the_newest_look(server):
    first, picture = looked(server, "some", every=2)
    run = version_by_hand(server.output, "some", 1, size=0.3)
    graph = held_out(server, "some", every=2)
    show = add(graph, "PreviewImage", images=[find(graph, NODE), 0])
    outputs = server.run(graph)
    assert outputs[find(graph, NODE)]["text"] == [f"version 1 is passed over (every 2); version 0: held-out reward {first['reward_mean']:.3f}"]
    assert [look["version"] for look in read_looks(run)] == [0]
    kept = [pixels(server.picture(image)) for image in outputs[show]["images"]]
    tiles = [pixels(picture)[y : y + 128, x : x + 128] for y in (0, 128) for x in (0, 128)]
    assert len(kept) == 3 and all(np.abs(a - b).max() <= 1 for a, b in zip(kept, tiles))
    version_by_hand(server.output, "some", 2, size=0.3)
    assert says(server, held_out(server, "some", every=2)).startswith("version 2: held-out reward ")
    assert [look["version"] for look in read_looks(run)] == [0, 2]


@pytest.mark.parametrize("spoil", ["nothing to show", "its picture is damaged", "another series"])
def test_every_looks_where_there_is_nothing_to_show(server, spoil):
    run = version_by_hand(server.output, spoil, 3)
    if spoil != "nothing to show":
        server.run(change(held_out(server, spoil), LIVE, version=0))
    if spoil == "its picture is damaged":
        look_picture(run, 0).write_bytes(b"no picture")
    assert says(server, held_out(server, spoil, every=10, seed=8 if spoil == "another series" else 7)).startswith("version 3: held-out reward ")


def test_an_older_version_can_be_looked_at_later(server):
    for version in (1, 2):
        run = version_by_hand(server.output, "older", version, size=0.3)
    server.run(held_out(server, "older"))
    text = says(server, change(held_out(server, "older"), LIVE, version=1))
    assert re.fullmatch(r"version 1: held-out reward \S+", text)  # what it is compared with is no later version
    assert [look["version"] for look in read_looks(run)] == [1, 2]


def no_live_lora(graph):
    return change(graph, NODE, model=[find(graph, "StepwiseGRPO_DemoModel"), 0])


def two_live_loras(graph):
    return insert(graph, NODE, "model", LIVE, "model", run_name="refused", version=-1, strength=1.0, use_ema=False)


def averaged(graph):
    return change(graph, LIVE, use_ema=True)


REFUSED = [
    (no_live_lora, "put Live LoRA with the run's name between the loader and this node"),
    (two_live_loras, "the model went through two Live LoRA nodes; keep one"),
    (averaged, "use_ema is on in Live LoRA; the averaged weights are for looking: turn it off for held-out pictures"),
    (lambda graph: change(graph, LIVE, strength=0.5), "strength is 0.5 in Live LoRA; set it to 1 for held-out pictures"),
    (lambda graph: change(graph, "BasicScheduler", denoise=0.5), "the sigmas must start at 1"),
    (lambda graph: insert(graph, LIVE, "model", "ModelSamplingDiscrete", "model", sampling="eps", zsnr=False), "flow"),
]


@pytest.mark.parametrize("spoil, reason", REFUSED)
def test_refused(server, spoil, reason):
    run = version_by_hand(server.output, "refused")
    write_whole(run.version_file(1, ema=True), run.version_file(1).read_bytes())
    with pytest.raises(ComfyError, match=re.escape(reason)):
        server.run(spoil(held_out(server, "refused")))
    assert not run.looks.exists() and server.get("/system_stats")


def test_a_file_in_place_of_the_folder_stops_nothing(server):
    run = RunFolder(server.output, "a file")
    write_whole(run.looks, b"not a folder")
    text = says(server, held_out(server, "a file"))
    assert re.match(r"version 0: held-out reward \S+\. Not kept, because .*looks cannot be written: ", text)
    assert run.looks.read_bytes() == b"not a folder"


@pytest.mark.skipif(sys.platform != "linux", reason="makes a small disk")
@pytest.mark.parametrize("size", ["4k", "8k"])  # too small for the picture; for what is written after it
def test_a_full_disk_stops_nothing(server, size):
    run = RunFolder(server.output, f"full {size}")
    run.looks.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(run.looks)], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        assert says(server, held_out(server, run.name)).endswith("looks cannot be written: No space left on device")
        assert read_looks(run) == [] and {path.suffix for path in run.looks.iterdir()} <= {".jpg"}
    finally:
        subprocess.run(["umount", str(run.looks)], check=True)


def test_strange_files_among_the_looks_are_passed_over(server):
    look, _ = looked(server, "strange")
    run = RunFolder(server.output, "strange")
    strange = {**look, "version": 5, "reward_mean": float("nan")}
    for name, data in {"v000005": json.dumps(strange), "v000006": "{", "v000007": "[]", "v7": json.dumps(look), "vx": json.dumps({**look, "version": "../../job"}), "v000008": json.dumps({**look, "version": -8})}.items():
        (run.looks / f"{name}.json").write_text(data, "utf-8")
    (run.looks / "v000009.json").mkdir()
    assert read_looks(run) == [look]
    version_by_hand(server.output, "strange", 9)
    text = says(server, held_out(server, "strange"))  # its own place is taken by a folder
    assert f"(version 0: {look['reward_mean']:.3f}). Not kept, because " in text
