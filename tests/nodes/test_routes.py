"""The page's routes on a real ComfyUI: what they tell, what they refuse, and that nothing on disk breaks them."""

import asyncio
import gzip
import http.client
import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
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
    assert ask(server, "/stepwise_grpo/runs/a/pause")[0] in (404, 405)


def test_a_damaged_run_says_what_is_wrong_and_hides_no_other(server):
    spoil = {
        "torn": ("latest.json", b'{"version": 3, "fi', "latest.json is damaged"),
        "garbage": ("status.json", b"\x00\xff\xfe", "status.json is damaged"),
        "list": ("latest.json", b"[1]", "latest.json does not hold what it should"),
        "deep": ("job.json", b"[" * 100_000, "job.json is damaged"),
        "nested": ("check.json", b'{"findings": ' + b"[" * 500 + b"]" * 500 + b"}", ""),
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
    assert full["versions"][1]["reward"] is None and full["summary"]["reward"] is None


def test_pausing_and_going_on(server):
    run = make_run(server.output, "a", 1)
    status, answer = act(server, "/runs/a/pause", {})
    assert status == 200 and answer["summary"]["paused"] and answer["summary"]["phase"] == "paused" and answer["notes"] == {}
    assert (run.path / "paused").read_bytes() == b""
    assert act(server, "/runs/a/pause", {})[0] == 200
    status, answer = act(server, "/runs/a/resume", {})
    assert status == 200 and not answer["summary"]["paused"] and answer["summary"]["phase"] == "waiting" and not (run.path / "paused").exists()
    assert act(server, "/runs/a/resume", {})[0] == 200


def test_asking_to_go_back_and_taking_it_back(server):
    run = make_run(server.output, "a", 4)
    for version in (2, 3):
        status, answer = act(server, "/runs/a/go_back", {"version": version})
        assert status == 200 and answer["summary"]["going_back_to"] == version == find(server, "a")["going_back_to"]
    (request,) = (run.path / "requests").iterdir()
    assert json.loads(request.read_bytes()) == {"kind": "go_back", "version": 3} and request.name.endswith("-go_back.json") and request.name[:20].isdigit()
    status, answer = act(server, "/runs/a/go_back", {"version": None})
    assert status == 200 and answer["summary"]["going_back_to"] is None and not list((run.path / "requests").iterdir())


@pytest.mark.parametrize(("version", "status", "says"), [(4, 409, "is the newest already"), (5, 409, "no version 5"), (0, 409, "no version 0"), (1, 409, "is gone")])
def test_going_back_to_nowhere_is_refused_with_the_reason(server, version, status, says):
    run = make_run(server.output, "a", 4)
    run.version_file(1).unlink()
    found, answer = act(server, "/runs/a/go_back", {"version": version})
    assert found == status and says in answer["error"] and not (run.path / "requests").exists()


@pytest.mark.parametrize("version", [True, False, -1, 1.5, 10**30, "1", [1], {}, float("nan")])
def test_a_version_of_another_kind_is_refused(server, version):
    run = make_run(server.output, "a", 2)
    for path, more in (("go_back", {}), ("notes", {"text": "x"})):
        status, answer = act(server, f"/runs/a/{path}", {"version": version, **more})
        assert status == 400 and "version must be a whole number" in answer["error"]
    assert not (run.path / "requests").exists() and not (run.path / "notes.json").exists()
    status, answer = act(server, "/runs/a/go_back", {})
    assert status == 400 and "version" in answer["error"]


def test_notes_of_a_run_and_of_a_version(server):
    run = make_run(server.output, "a", 2)
    assert act(server, "/runs/a/notes", {"version": None, "text": "<b>hello</b> é 🐈"})[1]["notes"] == {"run": "<b>hello</b> é 🐈"}
    assert act(server, "/runs/a/notes", {"version": 2, "text": "x" * 4000})[1]["notes"].keys() == {"run", "2"}
    assert get(server, "/runs/a")["notes"]["run"].startswith("<b>")
    assert act(server, "/runs/a/notes", {"version": 2, "text": ""})[1]["notes"].keys() == {"run"}
    for text in ("x" * 4001, None, 3, "half \ud800"):
        assert act(server, "/runs/a/notes", {"version": None, "text": text})[0] == 400
    assert act(server, "/runs/a/notes", {"version": 3, "text": "x"})[0] == 404
    assert json.loads((run.path / "notes.json").read_bytes()) == {"run": "<b>hello</b> é 🐈"}
    (run.path / "notes.json").write_bytes(b"{")
    status, answer = act(server, "/runs/a/notes", {"version": None, "text": "new"})
    assert status == 400 and "notes.json is damaged" in answer["error"] and (run.path / "notes.json").read_bytes() == b"{"


def test_notes_from_many_pages_at_once_are_all_kept(server):
    make_run(server.output, "a", 30)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda version: act(server, "/runs/a/notes", {"version": version, "text": "x"})[0], range(1, 31))) == {200}
    assert len(get(server, "/runs/a")["notes"]) == 30


def test_a_headless_run_is_told_apart_and_not_paused(server):
    run = make_run(server.output, "h", 3, base={"kind": "diffusers", "name": "sd3"})
    assert find(server, "h")["kind"] == "headless"
    status, answer = act(server, "/runs/h/pause", {})
    assert status == 409 and "Ctrl-C" in answer["error"] and not (run.path / "paused").exists()
    assert act(server, "/runs/h/go_back", {"version": 1})[0] == 200
    act(server, "/runs/h/go_back", {"version": None})
    run.write_status(phase="training", message="", version=3)
    write_json(server.output / FOLDER / "trainer.json", {"at": time.time()})  # another trainer, which is not this run's
    assert find(server, "h")["phase"] == "stopped"
    (server.output / FOLDER / "trainer.json").unlink()
    write_json(run.path / "trainer.json", {"at": time.time()})
    assert find(server, "h")["phase"] == "training"
    status, answer = act(server, "/runs/h/go_back", {"version": 1})
    assert status == 409 and "headless" in answer["error"] and not list((run.path / "requests").iterdir())


def test_stopping_the_trainer(server):
    folder = server.output / FOLDER
    (folder / "trainer.json").unlink(missing_ok=True)
    status, answer = act(server, "/trainer/stop", {})
    assert status == 409 and "no trainer is running" in answer["error"] and not (folder / "stop").exists()
    write_json(folder / "trainer.json", {"at": time.time(), "host": "here", "pid": 1})
    try:
        status, answer = act(server, "/trainer/stop", {})
        assert status == 200 and answer["trainer"]["stopping"] and answer["trainer"]["alive"] and answer["trainer"]["host"] == "here"
        assert (folder / "stop").read_bytes() == b"" and "training" in answer["trainer"]["command"]
    finally:
        (folder / "stop").unlink(missing_ok=True)
        (folder / "trainer.json").unlink()


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{}", {}, 415),
        (b"{}", {"Content-Type": "text/plain"}, 415),
        (b"{}", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        (b"{}", {"Content-Type": "application/json; charset=utf-8"}, 200),
        (b"{}", {**JSON, "Origin": "http://evil.example"}, 403),
        (b"{}", {**JSON, "Origin": "null"}, 403),
        (b"{}", {**JSON, "Origin": "OWN"}, 200),
        (b"{}", {**JSON, "Origin": "OTHER PORT"}, 403),
        (b"", JSON, 400),
        (b"{", JSON, 400),
        (b"[]", JSON, 400),
        (b"null", JSON, 400),
        (b'"\xff"', JSON, 400),
        (b"[" * 16_000, JSON, 400),
        (b'{"a":' * 3000, JSON, 400),
        (b'{"pause": 1}', JSON, 400),
        (b" " * 16_383 + b"{}", JSON, 413),
        (b" " * 16_382 + b"{}", JSON, 200),
        (b"x" * 1_000_000, JSON, 413),
        (b"{}", {**JSON, "Content-Encoding": "gzip"}, 400),
        (gzip.compress(b" " * 10_000_000), {**JSON, "Content-Encoding": "gzip"}, 413),
    ],
)
def test_what_an_action_needs(server, body, headers, status):
    run = make_run(server.output, "a", 1)
    own = {"OWN": server.url, "OTHER PORT": "http://127.0.0.1:1"}
    headers = {key: own.get(value, value) for key, value in headers.items()}
    found, answer, _ = ask(server, "/stepwise_grpo/runs/a/pause", "POST", body, headers)
    assert found == status and (run.path / "paused").exists() == (status == 200)
    assert status in (200, 403) or len(answer["error"]) > 10


def test_a_page_from_elsewhere_is_refused_under_a_name_too(server):
    """ComfyUI looks at loopback only; with a name as the host it is our own check that refuses."""
    make_run(server.output, "a", 1)
    for origin, status in (("http://evil.example", 403), ("http://my-pc:8188", 200), ("https://my-pc", 403)):
        found, answer, _ = ask(server, "/stepwise_grpo/runs/a/pause", "POST", b"{}", {**JSON, "Host": "my-pc:8188", "Origin": origin})
        assert found == status and (status == 200 or "Host header" in answer["error"])


def test_an_action_on_no_run_makes_none(server):
    (server.output / FOLDER / "New Folder").mkdir()
    for name, status in (("nobody", 404), ("New%20Folder", 404), ("..%2Fx", 400)):
        for action, body in (("pause", {}), ("resume", {}), ("go_back", {"version": None}), ("notes", {"version": None, "text": "x"})):
            assert act(server, f"/runs/{name}/{action}", body)[0] == status
    assert not (server.output / FOLDER / "nobody").exists() and not list((server.output / FOLDER / "New Folder").iterdir())


def test_answers_stay_small_and_quick_with_many_runs_and_events(server):
    for number in range(300):
        run = make_run(server.output, f"run {number:03d}")
        run.write_status(phase="waiting", message="")
        os.utime(run.path / "job.json", (number, number))
        os.utime(run.path / "status.json", (number, number))
    run = make_run(server.output, "long")
    more = {f"metric_{i}": 0.123456789 for i in range(40)}
    lines = (json.dumps({"version": version, "experience": "e", "at": 1.0, "reward_mean": 0.5, **more}) for version in range(1, 5001))
    (run.path / "events.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    run.write_latest({"version": 5000, "file": "", "digest": "", "experience": "e"})
    start = time.monotonic()
    listed = get(server, "/runs")
    seconds = time.monotonic() - start
    assert len(listed["runs"]) == 200 and listed["runs"][0]["name"] == "long" and listed["runs"][1]["name"] == "run 299"
    assert len(json.dumps(listed)) < 120_000 and seconds < 3
    start = time.monotonic()
    full = get(server, "/runs/long")
    assert [full["events"][0]["version"], full["events"][-1]["version"], len(full["versions"])] == [4001, 5000, 1000]
    assert len(json.dumps(full)) < 2_000_000 and time.monotonic() - start < 5
    assert len(get(server, "/runs/long?after=4998")["events"]) == 2


async def heard(server: ComfyServer, change: Any, seconds: float, first: float = 1.2) -> list[tuple[float, dict]]:
    """The messages about runs, with seconds since ``change``; those of the ``first`` seconds before it are left out."""
    found: list[tuple[float, dict]] = []
    async with aiohttp.ClientSession() as session, session.ws_connect(server.url + "/ws?clientId=listener") as socket:
        end, start = time.monotonic() + first, None
        while (left := end - time.monotonic()) > 0 or start is None:
            if start is None and left <= 0:
                found.clear()
                change()
                start = time.monotonic()
                end = start + seconds
                continue
            try:
                message = await asyncio.wait_for(socket.receive(), left)
            except asyncio.TimeoutError:
                continue
            if message.type == aiohttp.WSMsgType.TEXT and (data := json.loads(message.data))["type"] == "stepwise_grpo.runs":
                found.append((time.monotonic() - (start or 0), data["data"]))
    return found


def test_an_open_page_hears_within_a_second_of_a_change_on_disk_and_of_nothing_else(server):
    run = make_run(server.output, "a", 1)
    make_run(server.output, "b", 1)
    messages = asyncio.run(heard(server, lambda: commit(run, 2), 2.0, first=4.5))  # what is young on the disk is looked at again for 3 s
    assert messages and messages[0][0] < 1.0
    assert {summary["name"] for _, data in messages for summary in data["runs"]} == {"a"} and messages[-1][1]["runs"][0]["version"] == 2
    for change in (lambda: run.queue(b"x"), lambda: act(server, "/runs/a/go_back", {"version": 1}), lambda: write_json(run.path / "looks" / "v000001.json", {"version": 1})):
        messages = asyncio.run(heard(server, change, 1.0))
        assert messages and [summary["name"] for summary in messages[0][1]["runs"]] == ["a"]
    messages = asyncio.run(heard(server, lambda: shutil.rmtree(run.path), 1.0))
    assert messages[-1][1]["gone"] == ["a"] and messages[-1][1]["runs"] == []


def test_a_heartbeat_alone_is_no_news_but_a_trainers_coming_and_going_is(server):
    headless, folder = make_run(server.output, "h", 1, base={"kind": "diffusers"}), server.output / FOLDER

    def beat(path: Path) -> None:
        for _ in range(5):
            write_json(path / "trainer.json", {"at": time.time(), "host": "here"})
            time.sleep(0.4)

    write_json(folder / "trainer.json", {"at": time.time(), "host": "here"})
    try:
        for path in (folder, headless.path):
            assert asyncio.run(heard(server, lambda path=path: threading.Thread(target=beat, args=(path,)).start(), 2.0)) == []
        time.sleep(0.5)
        ((_, data),) = asyncio.run(heard(server, lambda: write_json(folder / "trainer.json", {"at": 0, "stopped": True}), 1.0))
        assert data["runs"] == [] and not data["trainer"]["alive"]
    finally:
        (folder / "trainer.json").unlink()
