"""The page's routes on a real ComfyUI: what they tell, what they refuse, and that nothing on disk breaks them."""

import http.client
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stepwise_grpo.tools.server import ComfyServer
from stepwise_grpo.training.job import FOLDER, RunFolder, write_json, write_whole

JOB = {"base": {"kind": "diffusion_models", "name": "sub/model.safetensors"}, "rank": 4, "alpha": 8.0}
JSON = {"Content-Type": "application/json"}


def ask(server: ComfyServer, path: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
    """Status, the answer (JSON where it is), and its headers. The path goes out as it is: no client tidies it."""
    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    kind = answer.headers.get("Content-Type", "")
    return answer.status, json.loads(data, parse_constant=no_constant) if "json" in kind else data, answer.headers


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def get(server: ComfyServer, path: str) -> Any:
    status, answer, _ = ask(server, f"/stepwise_grpo{path}")
    assert status == 200, answer
    return answer


def act(server: ComfyServer, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    status, answer, _ = ask(server, f"/stepwise_grpo{path}", "POST", json.dumps(body).encode(), {**JSON, **headers})
    return status, answer


def make_run(output: Path, name: str, versions: int = 0, **more: Any) -> RunFolder:
    """A run as the trainer leaves it, without real weights."""
    run = RunFolder(output, name)
    write_json(run.path / "job.json", {**JOB, **more})
    for version in range(1, versions + 1):
        commit(run, version)
    return run


def commit(run: RunFolder, version: int, **more: Any) -> None:
    write_whole(run.version_file(version), b"weights %d" % version)
    run.append_event({"version": version, "experience": f"e{version}", "at": 1000.0 + version, "reward_mean": version / 10, **more})
    run.write_latest({"version": version, "file": "", "digest": str(version), "experience": f"e{version}"})


def find(server: ComfyServer, name: str) -> dict[str, Any]:
    (found,) = [run for run in get(server, "/runs")["runs"] if run["name"] == name]
    return found


@pytest.fixture(autouse=True)
def no_earlier_runs(server: ComfyServer):
    """Each test sees its own runs only."""
    folder = server.output / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    aside = server.log.parent / f"aside {time.time_ns()}"
    aside.mkdir()
    for path in folder.iterdir():
        if path.is_dir():
            path.rename(aside / path.name)


def test_a_run_in_a_line_and_in_full(server):
    run = make_run(server.output, "my run é", 3)
    write_whole(run.picture_file(2), b"\x89PNG two")
    write_whole(run.version_file(3, ema=True), b"averaged")
    write_json(run.path / "looks" / "v000000.json", {"version": 0, "series": "s", "prompts": ["secret"], "reward_mean": float(1)})
    write_whole(run.path / "looks" / "v000000.jpg", b"\xff\xd8 look")
    run.write_status(phase="waiting", message="said", version=3)
    run.queue(b"experience")
    line = find(server, "my run é")
    assert {key: value for key, value in line.items() if key != "at"} == {
        "name": "my run é", "kind": "graph", "version": 3, "phase": "waiting", "message": "said", "waiting": 1, "paused": False, "going_back_to": None,
        "reward": 0.3, "base": "model.safetensors", "rejected": 0, "dropped": 0,
    }  # fmt: skip
    assert abs(line["at"] - time.time()) < 60
    full = get(server, "/runs/my%20run%20%C3%A9?after=1")
    assert full["summary"] == line and full["job"]["rank"] == 4 and full["findings"] is None and full["notes"] == {}
    assert [event["version"] for event in full["events"]] == [2, 3]
    assert [(entry["version"], entry["picture"], entry["look"], entry["ema"], entry["reward"], entry["back_to"]) for entry in full["versions"]] == [
        (2, True, False, False, 0.2, None),
        (3, False, False, True, 0.3, None),
    ]
    assert full["versions"][0]["lora_name"] == run.lora_name(2)
    assert full["looks"] == [{"version": 0, "series": "s", "reward_mean": 1.0}]
    assert get(server, "/runs/my%20run%20%C3%A9")["events"][0]["version"] == 1


def test_the_page_is_served_below_api_too_and_two_pages_see_the_same(server):
    make_run(server.output, "a", 2)
    one, two = (ask(server, f"{prefix}/stepwise_grpo/runs/a")[1] for prefix in ("", "/api"))
    assert one == two and one["summary"]["version"] == 2


def test_pictures_come_with_their_type_and_are_asked_for_again_by_their_tag(server):
    run = make_run(server.output, "a", 1)
    write_whole(run.picture_file(1), b"\x89PNG one")
    write_whole(run.path / "looks" / "v000001.jpg", b"\xff\xd8 look")
    for kind, data, media in (("best", b"\x89PNG one", "image/png"), ("look", b"\xff\xd8 look", "image/jpeg")):
        status, answer, headers = ask(server, f"/stepwise_grpo/runs/a/pictures/1?kind={kind}")
        assert (status, answer, headers["Content-Type"]) == (200, data, media) and headers["X-Content-Type-Options"] == "nosniff"
        again, _, _ = ask(server, f"/stepwise_grpo/runs/a/pictures/1?kind={kind}", headers={"If-None-Match": headers["ETag"]})
        assert again == 304


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("a/pictures/2?kind=best", 404, "no picture of version 2"),
        ("a/pictures/1", 404, "no picture of version 1"),
        ("a/pictures/1?kind=state", 400, "look or best"),
        ("a/pictures/-1", 400, "whole number"),
        ("a/pictures/1e3", 400, "whole number"),
        ("a/pictures/1000000000000000000000000000000", 400, "whole number"),
        ("a/pictures/%D9%A1", 400, "whole number"),
        ("a?after=-1", 400, "after must be"),
        ("a?after=x", 400, "after must be"),
        ("nobody", 404, "there is no run 'nobody'"),
        ("..%2Fx", 400, "not usable"),
        ("%2e%2e", 400, "not usable"),
        ("..%5Cx", 400, "not usable"),
        ("con", 400, "not usable"),
        ("stop", 400, "not usable"),
        (".credit", 400, "not usable"),
        ("%00", 400, "not usable"),
        ("a%00.json", 400, "not usable"),
        ("%2Fetc%2Fpasswd", 400, "not usable"),
        ("C%3A%5Cx", 400, "not usable"),
        ("x" * 3000, 400, "not usable"),
        ("%F0%9F%90%88", 400, "not usable"),
        ("%ff%fe", 400, "not usable"),
    ],
)
def test_addresses_that_mean_nothing_get_a_sentence(server, path, status, says):
    make_run(server.output, "a", 1)
    found, answer, _ = ask(server, f"/stepwise_grpo/runs/{path}")
    assert found == status and says in answer["error"] and set(answer) == {"error"} and len(answer["error"]) < 400


def test_dots_in_an_address_lead_nowhere(server):
    make_run(server.output, "a", 1)
    for path in ("/stepwise_grpo/runs/../runs", "/stepwise_grpo/runs/../x", "/stepwise_grpo/runs/a/../../../view"):
        assert ask(server, path)[0] in (400, 404)


def test_wrong_methods_are_refused(server):
    make_run(server.output, "a", 1)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(server, "/stepwise_grpo/runs", method)[0] == 405
        assert ask(server, "/stepwise_grpo/runs/a", method)[0] == 405
    assert ask(server, "/stepwise_grpo/runs/a/pause")[0] == 405


def test_a_damaged_run_says_what_is_wrong_and_hides_no_other(server):
    spoil = {
        "torn": ("latest.json", b'{"version": 3, "fi', "latest.json is damaged"),
        "garbage": ("status.json", b"\x00\xff\xfe", "status.json is damaged"),
        "list": ("latest.json", b"[1]", "latest.json does not hold what it should"),
        "deep": ("job.json", b"[" * 100_000, "job.json is damaged"),
        "odd": ("latest.json", b'{"version": "three"}', ""),
    }
    for name, (file, data, _) in spoil.items():
        (make_run(server.output, name, 2).path / file).write_bytes(data)
    (make_run(server.output, "jobless", 2).path / "job.json").unlink()
    folder = make_run(server.output, "folder", 2)
    (folder.path / "status.json").mkdir()
    (folder.path / "inbox").write_bytes(b"no folder")
    (server.output / FOLDER / "New Folder").mkdir()
    (server.output / FOLDER / ".hidden").mkdir()
    (server.output / FOLDER / "readme.txt").write_text("hello")
    make_run(server.output, "good", 2)
    found = {run["name"]: run for run in get(server, "/runs")["runs"]}
    assert set(found) == {*spoil, "jobless", "folder", "good"}
    for name, (_, _, says) in spoil.items():
        assert says in found[name]["message"]
        full = get(server, f"/runs/{name}")
        assert full["summary"] == found[name]
    assert "job.json is gone" in found["jobless"]["message"] and "status.json cannot be read" in found["folder"]["message"]
    assert found["good"]["message"] == "" and found["good"]["reward"] == 0.2


def test_events_with_nan_and_rubbish_become_null_and_nothing(server):
    run = make_run(server.output, "a", 1)
    with open(run.path / "events.jsonl", "ab") as file:
        file.write(b'{"version": 2, "reward_mean": NaN, "kl": Infinity, "deep": [{"x": -Infinity}]}\n[1]\n{"version": 1e999}\n{"version": "3"}\n\xff\xfe\n{"version": 4, "rew')
    run.write_latest({"version": 5, "file": "", "digest": "", "experience": ""})
    full = get(server, "/runs/a")
    assert full["events"][1] == {"version": 2, "reward_mean": None, "kl": None, "deep": [{"x": None}]} and len(full["events"]) == 2
    assert full["versions"][1]["reward"] is None and full["summary"]["reward"] == 0.1
