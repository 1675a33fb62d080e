"""The routes of the Credit Visualizer on a real ComfyUI: a view and its thumbnails, and nothing else on the disk."""

import io

import pytest
from PIL import Image

from stepwise_grpo.tests.nodes.test_credit_view import credit_of
from stepwise_grpo.tests.nodes.test_routes import ask

pytestmark = pytest.mark.usefixtures("comfy")
HOSTILE = (
    *("..", "../../my_run/job.json", "%2e%2e", "%2e%2e%2f%2e%2e%2fcomfyui.json", "0123456789ABCDEF", "0123456789abcde", "0123456789abcdef0", "0123456789abcde%00", "0123456789abcdef%0a"),
    *("0123456789abcde%C3%A9", "%EF%BC%90123456789abcde", "view.json", "a" * 5000),
)


@pytest.fixture
def id(server):
    from stepwise_grpo.nodes.credit_view import store

    return store(credit_of(), server.output)


@pytest.mark.parametrize("prefix", ["", "/api"])
def test_a_view_and_the_thumbnails_of_its_groups(server, id, prefix):
    status, view, headers = ask(server, f"{prefix}/stepwise_grpo/credit/{id}")
    assert status == 200 and view["group_size"] == 3 and view["thumbnails"] == {"width": 6, "height": 8} and headers["Content-Type"].startswith("application/json")
    for group in range(2):
        status, data, headers = ask(server, f"{prefix}/stepwise_grpo/credit/{id}/{group}")
        assert status == 200 and headers["Content-Type"] == "image/jpeg" and headers["X-Content-Type-Options"] == "nosniff"
        assert Image.open(io.BytesIO(data)).size == (4 * 6, 3 * 8)


@pytest.mark.parametrize("path, status", [("0123456789abcdef", 404), ("0123456789abcdef/0", 404), ("{id}/2", 404), ("{id}/-1", 400), ("{id}/view.json", 400), ("{id}/0.0", 400), ("{id}/99999", 400), ("{id}/%D9%A1", 400)])
def test_what_is_not_there_is_said_in_a_sentence(server, id, path, status):
    found, answer, _ = ask(server, f"/stepwise_grpo/credit/{path.format(id=id)}")
    assert found == status and ("not stored any more" in answer["error"]) == (status == 404)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_reach_no_file(server, id, name):
    for path in (name, f"{name}/0", f"{id}/{name}"):
        status, answer, _ = ask(server, f"/stepwise_grpo/credit/{path}")
        assert status in (400, 404, 405), (path, status)
        assert b"group_size" not in answer if isinstance(answer, bytes) else "error" in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_view_can_only_be_read(server, id, method):
    assert ask(server, f"/stepwise_grpo/credit/{id}", method, b"{}", {"Content-Type": "application/json"})[0] == 405
    assert ask(server, f"/stepwise_grpo/credit/{id}")[0] == 200


def test_a_damaged_view_is_an_error_in_a_sentence(server, id):
    file = server.output / "stepwise_grpo" / ".credit" / id / "view.json"
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[:40])
        status, answer, _ = ask(server, f"/stepwise_grpo/credit/{id}")
        assert status == 400 and answer["error"] == "this view is damaged"
    finally:
        file.write_bytes(whole)
