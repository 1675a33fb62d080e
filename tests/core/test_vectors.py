"""Reference vectors of three laws, and the command that checks files of them."""

import json
import math
from dataclasses import astuple
from pathlib import Path

import pytest
import torch

from stepwise_grpo.tools.vectors import LIMIT, check, law_of, main, worst
from stepwise_grpo.training.core.transitions import mean_log_density

FILE = Path(__file__).with_name("transition_vectors.json")
VECTORS = json.loads(FILE.read_text("utf-8"))


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{i}-{v['kind']}-step{v['step']}" for i, v in enumerate(VECTORS)])
def test_a_reference_vector_is_met(vector):
    assert max(astuple(check(vector))) <= LIMIT


def test_all_three_laws_are_covered_with_densities_where_they_are_given():
    assert {law: count for law, (count, _) in worst(VECTORS).items()} == {"flow": 8, "cps": 8, "ddim": 8}
    assert sum(v["log_prob_mean_over_elements"] is not None for v in VECTORS) == 14


def test_asking_a_point_law_of_the_vectors_for_a_density_raises():
    points = [v for v in VECTORS if v["transition_std"] == [0.0]]
    assert len(points) == 3
    for vector in points:
        law, x_next = law_of(vector)
        with pytest.raises(ValueError, match="no density"):
            mean_log_density(law, x_next)


def test_the_command_prints_a_row_for_each_law(capsys):
    assert main([str(FILE)]) == 0
    printed = capsys.readouterr().out
    assert all(law in printed for law in ("flow", "cps", "ddim", "mean log density"))


@pytest.mark.parametrize("key", ["mean", "transition_std", "log_prob_mean_over_elements"])
def test_the_command_fails_on_a_number_that_is_off_by_a_thousandth(key, tmp_path, capsys):
    vector = dict(VECTORS[0])
    vector[key] = (torch.tensor(vector[key], dtype=torch.float64) * 1.001).tolist()
    (tmp_path / "off.json").write_text(json.dumps([vector]))
    assert main([str(tmp_path / "off.json")]) == 1


def test_the_command_fails_on_nan(tmp_path):
    (tmp_path / "nan.json").write_text(json.dumps([{**VECTORS[0], "noise_level": math.nan}]))
    assert main([str(tmp_path / "nan.json")]) == 1


@pytest.mark.parametrize(
    "text, sentence",
    [
        (None, "cannot read"),
        ("[{", "cannot read"),
        ("{}", "must hold a JSON list"),
        ('[{"kind": "cps"}]', "lacks noise_level"),
        (json.dumps([{**VECTORS[0], "kind": "sde"}]), "unknown kind 'sde'"),
        (json.dumps([{**VECTORS[0], "step": 99}]), "vectors:"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(text, sentence, tmp_path, capsys):
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    assert main([str(path)]) == 2
    assert sentence in capsys.readouterr().err
