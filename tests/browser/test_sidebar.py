"""The sidebar tab "Stepwise GRPO" on a real ComfyUI with a real trainer: a run watched, steered, undone. The tests follow one run, in order."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch

from stepwise_grpo.tools.page import drop, open_page, wait_for_version
from stepwise_grpo.tools.server import ComfyServer, Trainer
from stepwise_grpo.tools.workflow import api_form
from stepwise_grpo.training.job import RunFolder, write_json

ROOT = Path(__file__).resolve().parent.parent.parent
SHOTS = Path(__file__).resolve().parent / "shots"
HTML = "<img src=x onerror=window.hacked=1>"
RUN = "my_first_run"


@pytest.fixture(scope="module")
def little(tmp_path_factory) -> Path:
    """The first loop with few pictures, so that an iteration takes a second."""
    graph = json.loads((ROOT / "workflows" / "first_loop.json").read_text("utf-8"))
    changed = {"StepwiseGRPO_PromptList": (1, 2), "StepwiseGRPO_StepwiseSDESampler": (0, 4), "BasicScheduler": (1, 6)}
    for node in graph["nodes"]:
        if node["type"] in changed:
            place, value = changed[node["type"]]
            node["widgets_values"][place] = value
    path = tmp_path_factory.mktemp("little") / "little.json"
    path.write_text(json.dumps(graph), "utf-8")
    return path


@pytest.fixture(scope="module")
def place(comfyui_folder, pack_folder, tmp_path_factory, little) -> Iterator[SimpleNamespace]:
    """A ComfyUI of its own without a trainer: ``place.start_trainer()`` starts one, ``place.iterate()`` makes an iteration."""
    folder = tmp_path_factory.mktemp("sidebar é")
    with ComfyServer(comfyui_folder, folder / "output", folder / "comfyui.log") as server:
        it = SimpleNamespace(server=server, run=RunFolder(server.output, RUN), trainer=None, seed=1000)

        def start_trainer() -> None:
            if it.trainer is None:
                it.trainer = Trainer(pack_folder, server.output, folder / "trainer.log")
            wait_until(it.run.trainer_is_alive, 180)

        def iterate() -> None:
            graph = api_form(json.loads(little.read_text("utf-8")), server.object_info())
            it.seed += 1
            for node in graph.values():
                if node["class_type"] == "StepwiseGRPO_StepwiseSDESampler":
                    node["inputs"]["seed"] = it.seed
            server.run(graph)

        it.start_trainer, it.iterate = start_trainer, iterate
        yield it
        if it.trainer is not None:
            it.trainer.stop()


@pytest.fixture
def trained(place) -> SimpleNamespace:
    """The same with a trainer and at least three versions, running and not paused."""
    place.start_trainer()
    if place.run.latest() is not None:
        place.server.post(f"/stepwise_grpo/runs/{RUN}/resume", {})
    while version_of(place) < 3:
        before = version_of(place)
        place.iterate()
        wait_for_version(place.run, before + 1, 60)
    wait_until(lambda: not any(place.server.get("/queue").values()), 30)
    return place


def version_of(place: SimpleNamespace) -> int:
    return (place.run.latest() or {}).get("version", 0)


def wait_until(true: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(0.1)


def open_tab(page) -> Any:
    if not page.locator(".sg-panel").count():
        page.locator(".stepwise-grpo-tab-button").click()
    panel = page.locator(".sg-panel")
    panel.wait_for()
    return panel


def opened(page, place, workflow: Path | None = None) -> Any:
    """The page with the sidebar open, and ``workflow`` on its canvas."""
    open_page(page, place.server)
    if workflow is not None:
        drop(page, workflow)
    return open_tab(page)


def shot(page, name: str, top: bool = True) -> None:
    SHOTS.mkdir(exist_ok=True)
    if top:
        page.evaluate("document.querySelector('.sg-panel').scrollTop = 0")
    page.wait_for_timeout(400)
    page.screenshot(path=SHOTS / f"sidebar_{name}.png")


def tall_shot(page, name: str) -> None:
    """The whole panel, however long."""
    size = page.viewport_size
    height = page.evaluate("document.querySelector('.sg-panel').scrollHeight")
    page.set_viewport_size({"width": size["width"], "height": min(height + 140, 4000)})
    page.wait_for_timeout(600)
    box = page.locator(".sg-panel").bounding_box()
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"sidebar_{name}.png", clip=box)
    page.set_viewport_size(size)


def shown_versions(page) -> list[int]:
    return page.evaluate("[...document.querySelectorAll('.sg-panel .sg-tile')].map(tile => Number(tile.dataset.version))")


def expect(page, text: str, seconds: float = 60) -> None:
    page.locator(".sg-panel").get_by_text(text).first.wait_for(timeout=1000 * seconds)


def history(place) -> list[str]:
    return [entry["status"]["status_str"] for entry in place.server.get("/history").values()]


def live_loras(page) -> list[int]:
    return page.evaluate("window.app.graph.nodes.filter(n => n.type === 'StepwiseGRPO_LiveLoRA').map(n => n.widgets.find(w => w.name === 'version').value)")


def test_a_newcomer_is_told_what_to_do(page, complaints, place):
    panel = opened(page, place)
    expect(page, "No run yet")
    assert "training" in panel.locator(".sg-code").first.inner_text()
    shot(page, "empty")
    assert complaints == []


def test_without_a_trainer_the_command_and_what_waits_are_there(page, complaints, place, little):
    panel = opened(page, place, little)
    for waiting in (1, 2):
        page.get_by_role("button", name="Run", exact=True).first.click()
        wait_until(lambda waiting=waiting: len(place.run.waiting()) == waiting, 120)
    expect(page, "2 iterations wait for it")
    assert panel.locator(".sg-code").first.inner_text() == place.server.get("/stepwise_grpo/runs")["trainer"]["command"]
    expect(page, "waits for trainer")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panel.get_by_role("button", name="Copy").first.click()
    expect(page, "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == panel.locator(".sg-code").first.inner_text()
    shot(page, "no_trainer")
    place.start_trainer()
    expect(page, "Trainer is running")
    wait_for_version(place.run, 2, 120)
    wait_until(lambda: shown_versions(page) == [2, 1, 0], 30)  # 0: Held-Out Pictures looked at where the run began
    assert complaints == []


def test_a_run_lives_and_a_reload_goes_on_until_exactly_the_version(page, complaints, trained, little):
    panel, first = opened(page, trained, little), version_of(trained)
    panel.get_by_label("Keep queueing until version").fill(str(first + 5))
    panel.get_by_role("button", name="Start", exact=True).click()
    expect(page, f"of {first + 5}. It goes on while this page is open.")
    assert panel.get_by_role("button", name="Start", exact=True).is_disabled()
    wait_for_version(trained.run, first + 2, 120)
    page.reload()
    page.wait_for_function("window.app && window.app.graph")
    open_tab(page)
    expect(page, f"of {first + 5}. It goes on while this page is open.")
    wait_until(lambda: len(shown_versions(page)) >= first + 2, 30)
    wait_for_version(trained.run, first + 5, 240)
    expect(page, f"Done: version {first + 5} is there.")
    wait_until(lambda: shown_versions(page) == list(range(first + 5, -1, -1)), 30)
    page.wait_for_timeout(3000)
    assert version_of(trained) == first + 5 and not trained.run.waiting() and not any(trained.server.get("/queue").values())
    assert [event["behaviour_version"] for event in trained.run.events()][-5:] == list(range(first, first + 5))
    assert panel.locator(".sg-charts svg").count() == 3
    shot(page, "live")
    tall_shot(page, "live_whole")
    assert complaints == []


def test_pointing_at_a_curve_shows_that_version_everywhere(page, complaints, trained):
    panel = opened(page, trained)
    chart = panel.locator(".sg-charts svg").first
    chart.wait_for()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 44 + (box["width"] - 54) / version_of(trained), box["y"] + 40)  # the axis begins at version 0, between the chart's margins
    expect(page, "version 1")
    event = trained.run.events()[0]
    assert panel.locator(".sg-value").first.inner_text().startswith(f"{event['reward_mean']:.3g} ± ")
    assert panel.locator(".sg-cursor[visibility=visible]").count() == len(panel.locator(".sg-charts svg").all())
    shot(page, "pointing")
    page.locator(".sg-charts").focus()
    page.keyboard.press("ArrowRight")
    assert panel.locator("h3", has_text="version 2").count() == 1
    assert complaints == []


def test_two_pages_agree(page, complaints, trained):
    panel = opened(page, trained)
    other = page.context.new_page()
    other_panel = opened(other, trained)
    panel.get_by_label("Note on this run").fill(f"looks good {HTML}")
    other.wait_for_function(f"[...document.querySelectorAll('.sg-note textarea')].some(field => field.value === {json.dumps(f'looks good {HTML}')})", timeout=20_000)
    other_panel.locator(".sg-tile[data-version='2']").click()
    other_panel.get_by_label("Note on version 2").fill("the nice one")
    other_panel.get_by_label("Note on version 2").blur()
    panel.locator(".sg-tile[data-version='2']").get_by_text("✎").wait_for()
    before = version_of(trained)
    trained.iterate()
    wait_for_version(trained.run, before + 1, 60)
    for one in (page, other):
        wait_until(lambda one=one: shown_versions(one)[0] == before + 1, 30)
    assert shown_versions(page) == shown_versions(other)
    assert trained.server.get(f"/stepwise_grpo/runs/{RUN}")["notes"] == {"run": f"looks good {HTML}", "2": "the nice one"}
    assert page.evaluate("window.hacked") is None and complaints == []


def test_only_one_of_two_pages_queues(page, complaints, trained, little):
    panel, first = opened(page, trained, little), version_of(trained)
    other = page.context.new_page()
    other_panel = opened(other, trained, little)
    panel.get_by_label("Keep queueing until version").fill(str(first + 3))
    panel.get_by_role("button", name="Start", exact=True).click()
    expect(other, f"Another tab of this browser keeps queueing until version {first + 3}.")
    assert other_panel.get_by_role("button", name="Start", exact=True).is_disabled()
    other_panel.get_by_role("button", name="Pause", exact=True).click()
    expect(page, "Queueing ended: the run was paused.")
    expect(other, "Paused: no iteration begins")
    wait_until(lambda: not trained.server.get("/queue")["queue_pending"], 60)
    page.wait_for_timeout(4000)
    last = version_of(trained)
    page.wait_for_timeout(4000)  # what was handed over before the pause waits for the trainer
    assert version_of(trained) == last < first + 3 and not trained.server.get("/queue")["queue_pending"]
    assert complaints == []


def test_pinned_in_live_lora_and_applied(page, complaints, trained, little):
    panel = opened(page, trained, little)
    panel.locator(".sg-tile[data-version='2']").click()
    panel.get_by_role("button", name="Pin in Live LoRA").click()
    page.get_by_text("Live LoRA now uses version 2").wait_for()
    assert live_loras(page) == [2]
    expect(page, "Live LoRA is pinned to version 2.")
    shot(page, "pinned", top=False)
    tall_shot(page, "version_card")
    said = page.evaluate("window.app.graphToPrompt().then(p => Object.values(p.output).find(n => n.class_type === 'StepwiseGRPO_LiveLoRA').inputs.version)")
    assert said == 2
    before = len(history(trained))
    page.get_by_role("button", name="Run", exact=True).first.click()
    wait_until(lambda: len(history(trained)) > before, 60)
    page.wait_for_timeout(2000)
    page.keyboard.press("Escape")  # an old version is refused for training, and ComfyUI's page says so in a box of its own
    note = "window.app.graph.nodes.find(n => n.type === 'StepwiseGRPO_LiveLoRA').widgets.map(w => String(w.value)).find(v => v.startsWith('my_first_run version'))"
    assert page.evaluate(note) == "my_first_run version 2"
    newest, before = version_of(trained), len(history(trained))
    panel.get_by_label("Keep queueing until version").fill(str(newest + 1))
    panel.get_by_role("button", name="Start", exact=True).or_(panel.get_by_role("button", name="Resume", exact=True)).click()
    expect(page, f"Queueing: version {newest} of {newest + 1}.")
    page.wait_for_timeout(3000)
    assert len(history(trained)) == before and version_of(trained) == newest  # it waits for the pin to go
    panel.get_by_role("button", name="Unpin (newest)").last.click()
    assert live_loras(page) == [-1]
    expect(page, f"Done: version {newest + 1} is there.", 120)
    assert complaints == []


def test_pinning_without_a_node_says_why(page, complaints, trained):
    panel = opened(page, trained)
    page.evaluate("window.app.graph.clear()")
    panel.locator(".sg-tile[data-version='1']").click()
    panel.get_by_role("button", name="Pin in Live LoRA").click()
    page.get_by_text("Nothing was set: the open workflow has no Live LoRA node.").wait_for()
    expect(page, "The open workflow does not train this run.")
    assert complaints == []


def test_going_back_and_on_from_there(page, complaints, trained, little):
    panel, newest = opened(page, trained, little), version_of(trained)
    panel.locator(".sg-tile[data-version='1']").click()
    panel.get_by_role("button", name="Go back to here").click()
    expect(page, f"The run gets a new version {newest + 1} with the weights of version 1")
    shot(page, "go_back_question", top=False)
    panel.get_by_role("button", name="Go back", exact=True).click()
    wait_for_version(trained.run, newest + 1, 60)
    old, new = (safetensors.torch.load_file(trained.run.version_file(version)) for version in (1, newest + 1))
    assert old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)
    panel.locator(f".sg-tile[data-version='{newest + 1}']").get_by_text("↩ 1").wait_for()
    assert panel.locator(".sg-back").count() >= 1
    panel.get_by_label("Keep queueing until version").fill(str(newest + 2))
    panel.get_by_role("button", name="Start", exact=True).click()
    expect(page, f"Done: version {newest + 2} is there.", 120)
    assert trained.run.events()[-1]["behaviour_version"] == newest + 1
    tall_shot(page, "went_back")
    assert complaints == []


def test_stop_cancels_at_once_and_nothing_begins_any_more(page, complaints, trained, little):
    panel, first = opened(page, trained, little), version_of(trained)
    panel.get_by_label("Keep queueing until version").fill(str(first + 90))
    panel.get_by_role("button", name="Start", exact=True).click()
    wait_for_version(trained.run, first + 1, 120)
    for _ in range(3):  # more of the artist's own, which must not run either
        page.get_by_role("button", name="Run", exact=True).first.click()
    wait_until(lambda: trained.server.get("/queue")["queue_running"], 30)
    panel.get_by_role("button", name="Stop", exact=True).click()
    wait_until(lambda: not any(trained.server.get("/queue").values()), 20)
    expect(page, "Paused: no iteration begins")
    page.wait_for_timeout(3000)
    last = version_of(trained)
    assert not any(trained.server.get("/queue").values()) and (trained.run.path / "paused").exists()
    page.wait_for_timeout(3000)
    assert version_of(trained) == last < first + 5
    shot(page, "stopped")
    panel.get_by_label("Keep queueing until version").fill(str(last + 2 + len(trained.run.waiting())))
    panel.get_by_role("button", name="Resume", exact=True).click()
    expect(page, f"Done: version {last + 2 + len(trained.run.waiting())} is there.", 120)
    assert complaints == []


def test_a_fixed_seed_is_named(page, complaints, trained, little):
    opened(page, trained, little)
    page.evaluate("window.app.graph.nodes.find(n => n.type === 'StepwiseGRPO_StepwiseSDESampler').widgets.find(w => w.name === 'control_after_generate').value = 'fixed'")
    expect(page, "is fixed, so each iteration draws the same noise")
    assert complaints == []


def test_light_theme_wide_and_with_held_out_pictures(page, complaints, trained):
    from PIL import Image

    for version in range(1, version_of(trained) + 1, 2):
        mean = 0.6 + 0.02 * version
        write_json(trained.run.path / "looks" / f"v{version:06d}.json", {"version": version, "digest": "", "at": time.time(), "series": "s", "reward": "r", "rewards": [mean] * 4, "reward_mean": mean, "reward_std": 0.1, "prompts": [HTML], "seed": 0})
        Image.new("RGB", (256, 256), (40 * version % 255, 90, 160)).save(trained.run.path / "looks" / f"v{version:06d}.jpg")
    trained.server.post("/settings/Comfy.ColorPalette", "light")
    try:
        panel = opened(page, trained)
        panel.locator(".sg-held.sg-dot").first.wait_for()
        gutter, box = page.locator(".p-splitter-gutter").first.bounding_box(), panel.bounding_box()
        page.mouse.move(gutter["x"] + 2, 500)
        page.mouse.down()
        page.mouse.move(gutter["x"] + 400, 500, steps=5)
        page.mouse.up()
        wait_until(lambda: panel.bounding_box()["width"] > box["width"] + 200, 30)
        panel.locator(".sg-tile").nth(1).click()
        tall_shot(page, "light_wide")
        assert panel.locator(".sg-charts svg").first.bounding_box()["width"] > 500
    finally:
        trained.server.post("/settings/Comfy.ColorPalette", "dark")
    assert complaints == []


def test_the_trainer_can_be_asked_to_end(page, complaints, trained):
    panel = opened(page, trained)
    panel.get_by_role("button", name="Stop trainer").click()
    expect(page, "frees the graphics card")
    panel.locator(".sg-question").get_by_role("button", name="Stop trainer").click()
    expect(page, "The trainer is not running.")
    assert trained.trainer.wait(20) and complaints == []
    trained.trainer = None


def test_hostile_texts_stay_texts(page, complaints, place):
    folder = place.server.output / "stepwise_grpo"
    (folder / "hostile").mkdir(parents=True)
    for name in (f"{HTML}", "..%2f", "con"):
        (folder / name.replace("/", "_") / "inbox").mkdir(parents=True, exist_ok=True)
    write_json(folder / "hostile" / "job.json", {"base": {"kind": "file", "name": HTML}})
    write_json(folder / "hostile" / "status.json", {"phase": HTML, "message": HTML, "at": time.time()})
    write_json(folder / "hostile" / "notes.json", {"run": HTML})
    write_json(folder / "hostile" / "check.json", {"findings": [{"name": HTML, "passed": False}]})
    panel = opened(page, place)
    panel.locator(".sg-run", has_text="hostile").click()
    expect(page, HTML)
    assert panel.locator("h2").inner_text() == "hostile"
    assert panel.locator(".sg-run").filter(has_text="<img").count() == 0
    assert panel.locator("img[src=x]").count() == 0 and page.evaluate("window.hacked") is None
    shot(page, "hostile")
    shutil.rmtree(folder / "hostile")
    wait_until(lambda: panel.locator(".sg-run", has_text="hostile").count() == 0, 30)
    assert complaints == []


def many(output: Path) -> None:
    """300 runs, and one of 1000 versions with pictures."""
    from PIL import Image

    for i in range(300):
        write_json(output / "stepwise_grpo" / f"run {i:03d}" / "job.json", {"base": {"kind": "demo"}})
    run = RunFolder(output, "long")
    write_json(run.path / "job.json", {"base": {"kind": "demo"}})
    run.loras.mkdir(parents=True)
    Image.new("RGB", (128, 128), (90, 60, 30)).save(run.picture_file(1))
    steps = 24
    lines = []
    for version in range(1, 1001):
        if version > 1:
            shutil.copyfile(run.picture_file(1), run.picture_file(version))
        gains = [round(0.3 * (1 - k / steps) * (1 - version / 2000), 4) for k in range(steps)]
        lines.append(json.dumps({"version": version, "experience": str(version), "at": 1.7e9 + version, "reward_mean": 0.5 + version / 2500, "reward_std": 0.2, "kl": version / 1e5, "clip_fraction": 0.1, "pictures": 96, "zero_variance_groups": 0, "gain_by_step": gains}))
    (run.path / "events.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    write_json(run.path / "latest.json", {"version": 1000, "file": "", "digest": "", "experience": "1000"})


PAINTED = """new Promise(done => {
    const look = () => document.querySelectorAll('.sg-panel .sg-tile').length >= 60 && document.querySelectorAll('.sg-charts svg').length === 3 && document.querySelectorAll('.sg-run').length >= 200
        ? requestAnimationFrame(() => {
            const answered = performance.getEntriesByType('resource').filter(entry => /stepwise_grpo\\/runs\\/long/.test(entry.name)).at(-1)
            done([performance.now() - answered.responseEnd, answered.duration])
        }) : requestAnimationFrame(look)
    look()
})"""


def test_many_runs_and_many_versions_stay_usable(page, complaints, place, capsys):
    many(place.server.output)
    page.add_init_script("performance.setResourceTimingBufferSize(9999)")  # the page alone loads more than the 250 that are kept
    open_page(page, place.server)
    page.locator(".stepwise-grpo-tab-button").click()
    page.wait_for_function("document.querySelector('.sg-open h2')?.textContent === 'long'")
    after, answer = page.evaluate(PAINTED)
    panel = page.locator(".sg-panel")
    with capsys.disabled():
        print(f"\n1000 versions, 300 runs: painted {after:.0f} ms after the answer, which took {answer:.0f} ms")
    assert after < 1000
    panel.get_by_label("Search runs").fill("run 299")
    assert panel.locator(".sg-run:visible").count() <= 1
    panel.get_by_label("Search runs").fill("")
    panel.get_by_role("button", name=re.compile("Show older")).click()
    wait_until(lambda: len(shown_versions(page)) == 180, 5)
    took = page.evaluate("(() => { const from = performance.now(); document.querySelector('.sg-panel .sg-tile').click(); return performance.now() - from })()")
    assert took < 300
    tall_shot(page, "many")
    shot(page, "many_top")
    assert complaints == []
