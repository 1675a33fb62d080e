"""Settings: a JSON round trip, closed, documented, and with ranges."""

import ast
import json
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from stepwise_grpo.training import config
from stepwise_grpo.training.config import Job, Origin, PreviewSettings, UpdateSettings, from_json, to_json

DEMO = {"kind": "demo"}
FILE = {"name": "x.safetensors", "size": 7, "sha256": "ab"}
FILLED = {
    Job: Job(
        base={"kind": "diffusion_models", **FILE}, targets="all", pattern="a.*", rank=4, alpha=8.5, seed=3, start=FILE, optimiser="adamw8bit"
    ),
    UpdateSettings: UpdateSettings(
        learning_rate=3e-4, clip=1e-4, beta=0.004, updates=3, weight_decay=0.0, max_grad_norm=0.5, ema=0.9, rows_per_call=7, checkpointing="off", share_gpu=False
    ),
    Origin: Origin(run="été", version=7, digest="ab", strength=0.5, loras=2, ema=True, start=FILE),
    PreviewSettings: PreviewSettings(scheme="to_go", substeps=5, by_time=True, spacing=3.0, rows_per_call=1),
}
CLASSES = list(FILLED)


@pytest.mark.parametrize("kind", CLASSES)
def test_settings_go_through_json_and_come_back_equal(kind):
    assert from_json(kind, json.loads(json.dumps(to_json(FILLED[kind])))) == FILLED[kind]
    defaults = {"base": DEMO} if kind is Job else {}
    assert from_json(kind, json.loads(json.dumps(to_json(kind(**defaults))))) == kind(**defaults)


@pytest.mark.parametrize("kind", CLASSES)
def test_no_field_was_left_at_its_default_in_the_round_trip(kind):
    for field in fields(kind):
        assert getattr(FILLED[kind], field.name) != field.default


@pytest.mark.parametrize("kind", CLASSES)
def test_settings_cannot_be_changed_afterwards(kind):
    with pytest.raises(FrozenInstanceError):
        setattr(FILLED[kind], fields(kind)[0].name, 1)


def test_an_unknown_key_is_an_error_with_a_suggestion():
    with pytest.raises(ValueError, match="UpdateSettings has no setting 'learning_rat'; did you mean 'learning_rate'?"):
        from_json(UpdateSettings, {"learning_rat": 1e-3})


def test_an_unknown_key_that_resembles_nothing_lists_the_known_ones():
    with pytest.raises(ValueError, match="PreviewSettings has no setting 'zzz'; known: scheme, substeps, by_time, spacing, rows_per_call"):
        from_json(PreviewSettings, {"zzz": 1})


def documented() -> dict[str, dict[str, str | None]]:
    """For each class of config.py, its fields and the docstring under each."""
    found: dict[str, dict[str, str | None]] = {}
    for node in ast.parse(Path(config.__file__).read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            after = [*node.body[1:], None]
            texts = {
                b.target.id: a.value.value if isinstance(a, ast.Expr) and isinstance(a.value, ast.Constant) else None
                for b, a in zip(node.body, after)
                if isinstance(b, ast.AnnAssign)
            }
            found[node.name] = texts
    return found


def test_every_field_is_documented():
    texts = documented()
    assert set(texts) == {kind.__name__ for kind in CLASSES}
    for kind in CLASSES:
        assert set(texts[kind.__name__]) == {field.name for field in fields(kind)}
        assert not [name for name, text in texts[kind.__name__].items() if not text], kind.__name__


NAN, INF = float("nan"), float("inf")
OUT_OF_RANGE = [
    *[(UpdateSettings, "learning_rate", value) for value in (0, -1e-3, 1.5, NAN, INF)],
    *[(UpdateSettings, "clip", value) for value in (0, 1, -0.1, NAN)],
    *[(UpdateSettings, "beta", value) for value in (-0.1, NAN, INF)],
    *[(UpdateSettings, "updates", value) for value in (0, 65, -1)],
    *[(UpdateSettings, "weight_decay", value) for value in (-0.1, 1, NAN)],
    *[(UpdateSettings, "max_grad_norm", value) for value in (0, -1, NAN)],
    *[(UpdateSettings, "ema", value) for value in (-0.1, 1, NAN)],
    *[(UpdateSettings, "rows_per_call", value) for value in (-1, -5)],
    *[(PreviewSettings, "substeps", value) for value in (0, 65)],
    *[(PreviewSettings, "spacing", value) for value in (0.9, NAN, INF)],
    *[(PreviewSettings, "rows_per_call", value) for value in (0,)],
    *[(Job, "rank", value) for value in (0, 1025)],
    *[(Job, "alpha", value) for value in (0, -1, NAN, INF)],
    *[(Job, "base", value) for value in ({}, {"kind": ""}, None, "demo")],
]


@pytest.mark.parametrize("kind, name, value", OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_its_name(kind, name, value):
    arguments = {"base": DEMO, name: value} if kind is Job else {name: value}
    with pytest.raises(ValueError, match=name):
        kind(**arguments)


@pytest.mark.parametrize(
    "kind, values",
    [
        (UpdateSettings, {"learning_rate": 1, "clip": 0.999, "beta": 0, "updates": 64, "ema": 0.999, "rows_per_call": 1}),
        (PreviewSettings, {"substeps": 64, "spacing": 1}),
        (Job, {"base": DEMO, "rank": 1024}),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(kind, values):
    kind(**values)


@pytest.mark.parametrize(
    "kind, data, words",
    [
        (Job, {"base": DEMO, "rank": 16.5}, "rank must be a whole number; got 16.5"),
        (Job, {"base": DEMO, "pattern": 5}, "pattern must be a text; got 5"),
        (Job, {"base": DEMO, "seed": True}, "seed must be a whole number; got True"),
        (Job, {"base": DEMO, "start": "x"}, "start must be an object in braces or null"),
        (Job, {"base": []}, "base must be an object in braces"),
        (UpdateSettings, {"updates": 2.5}, "updates must be a whole number; got 2.5"),
        (UpdateSettings, {"share_gpu": "no"}, "share_gpu must be true or false; got 'no'"),
        (UpdateSettings, {"clip": None}, "clip must be a number; got None"),
        (PreviewSettings, {"rows_per_call": 2.5}, "rows_per_call must be a whole number"),
    ],
)
def test_json_of_another_kind_is_an_error_that_names_the_setting(kind, data, words):
    with pytest.raises(ValueError, match=words):
        from_json(kind, data)


def test_a_whole_number_passes_for_a_number():
    assert from_json(UpdateSettings, {"max_grad_norm": 1}).max_grad_norm == 1
