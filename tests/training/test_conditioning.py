"""Conditioning as data: refusals by key, batches by token count, and the way into a file and back."""

import json

import pytest
import torch

from stepwise_grpo.training.conditioning import TAG, ConditioningBatcher, checked, flatten, signature, stack, unflatten


def entry(tokens: int = 4, fill: float = 0.0, **options):
    return [torch.full((1, tokens, 3), fill), {"pooled_output": torch.full((1, 2), fill), **options}]


@pytest.mark.parametrize(
    "key, value, name",
    [
        ("control", object(), "a control net"),
        ("gligen", ("position", None, []), "GLIGEN boxes"),
        ("mask", torch.ones(1, 8, 8), "a mask"),
        ("area", (8, 8, 0, 0), "an area"),
        ("hooks", object(), "hooks"),
        ("additional_models", [object()], "an additional model"),
        ("start_percent", 0.2, "a time range"),
        ("end_percent", 0.5, "a time range"),
        ("clip_start_percent", 0.5, "a time range"),
        ("clip_end_percent", 0.9, "a time range"),
    ],
)
def test_what_the_trainer_cannot_repeat_is_refused_by_its_key(key, value, name):
    with pytest.raises(ValueError, match=rf"the positive conditioning carries {name}.*\('{key}'\)"):
        checked([entry(**{key: value})], "positive")


def test_a_later_entry_is_looked_at_as_well_and_the_side_is_named():
    with pytest.raises(ValueError, match="the negative conditioning carries a mask"):
        checked([entry(), entry(mask=torch.ones(2, 2))], "negative")


@pytest.mark.parametrize("value", [lambda x: x, object(), {1, 2}, b"bytes", [lambda x: x], {"inner": {"deep": object()}}])
def test_values_that_are_not_data_are_refused_by_their_key(value):
    with pytest.raises(ValueError, match="has 'extra.*' of type"):
        checked([entry(extra=value)], "positive")


def test_time_ranges_that_cover_everything_and_absent_controls_are_harmless():
    options = {"start_percent": 0.0, "end_percent": 1.0, "clip_start_percent": 0.0, "clip_end_percent": 1.0, "control": None, "hooks": None}
    (kept,) = checked([entry(**options)], "positive")
    assert set(kept[1]) == {"pooled_output"}


def test_the_tag_of_a_prompt_is_taken_off_and_plain_data_are_kept():
    options = {
        TAG: {"prompt": "a", "index": 0},
        "guidance": 3.5,
        "strength": 1,
        "text": "x",
        "flag": True,
        "nothing": None,
        "list": [1, torch.ones(1)],
        "tree": {"a": (1, 2)},
    }
    given = entry(**options)
    (kept,) = checked([given], "positive")
    assert TAG in given[1] and TAG not in kept[1]
    assert set(kept[1]) == {"pooled_output", *options} - {TAG}
    assert kept[0] is given[0]


def test_prompts_of_one_shape_share_a_call_and_keep_their_rows():
    prompts = [[entry(fill=0.0)], [entry(fill=1.0)], [entry(fill=2.0)]]
    ((positions, ((cond, options),)),) = ConditioningBatcher(prompts).split(torch.tensor([2, 0, 1, 2]))
    assert positions.tolist() == [0, 1, 2, 3]
    assert cond.shape == (4, 4, 3) and cond[:, 0, 0].tolist() == [2, 0, 1, 2]
    assert options["pooled_output"][:, 0].tolist() == [2, 0, 1, 2]


def test_unequal_token_counts_are_split_and_never_padded():
    prompts = [[entry(tokens=4, fill=0.0)], [entry(tokens=7, fill=1.0)], [entry(tokens=4, fill=2.0)]]
    groups = ConditioningBatcher(prompts).split(torch.tensor([0, 1, 2, 1, 0]))
    assert [positions.tolist() for positions, _ in groups] == [[0, 2, 4], [1, 3]]
    assert [conditioning[0][0].shape[1] for _, conditioning in groups] == [4, 7]
    assert groups[0][1][0][0][:, 0, 0].tolist() == [0, 2, 0]


@pytest.mark.parametrize(
    "other",
    [
        entry(guidance=4.0),
        entry(guidance=3.5, more=1),
        [torch.zeros(1, 4, 3, dtype=torch.float16), {"pooled_output": torch.zeros(1, 2), "guidance": 3.5}],
        [torch.zeros(1, 4, 3), {"pooled_output": None, "guidance": 3.5}],
    ],
)
def test_prompts_that_differ_in_a_value_a_key_or_a_dtype_do_not_share_a_call(other):
    prompts = [[entry(guidance=3.5)], [other]]
    assert len(ConditioningBatcher(prompts).split(torch.tensor([0, 1]))) == 2


def test_prompts_that_blend_several_entries_share_calls_with_their_like_only():
    two, one = [entry(), entry()], [entry()]
    assert signature(two) != signature(one)
    ((_, conditioning),) = ConditioningBatcher([two, two]).split(torch.tensor([0, 1]))
    assert len(conditioning) == 2 and conditioning[1][0].shape[0] == 2


@pytest.mark.parametrize("shared", [torch.tensor(3.5), torch.arange(6.0).reshape(2, 3)])
def test_a_tensor_without_a_row_for_the_prompt_is_shared_where_it_is_equal(shared):
    prompts = [[entry(extra=shared.clone())], [entry(extra=shared.clone())]]
    ((_, ((_, options),)),) = ConditioningBatcher(prompts).split(torch.tensor([0, 1, 1]))
    assert torch.equal(options["extra"], shared)


@pytest.mark.parametrize("one, two", [(torch.tensor(3.5), torch.tensor(4.0)), (torch.zeros(2, 3), torch.ones(2, 3))])
def test_a_tensor_without_a_row_for_the_prompt_keeps_prompts_apart_where_it_differs(one, two):
    groups = ConditioningBatcher([[entry(extra=one)], [entry(extra=two)]]).split(torch.tensor([0, 1]))
    assert len(groups) == 2
    assert torch.equal(groups[1][1][0][1]["extra"], two)


def test_stacking_one_prompt_changes_nothing():
    cond, options = stack([[entry(guidance=3.5, fill=2.0)]])[0]
    assert torch.equal(cond, entry(fill=2.0)[0]) and options["guidance"] == 3.5


def equal(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, list) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def test_a_tree_goes_through_json_and_tensors_and_comes_back():
    tree = [entry(guidance=3.5, name="ü", nothing=None, flag=True, many=[1, 2.5, {"deep": torch.arange(3)}], pair=(1, "two"), empty=[], none={})]
    tree[0][1]["half"] = torch.randn(1, 2).to(torch.bfloat16)
    tree[0][1]["a/b"] = torch.tensor(7)
    tensors: dict[str, torch.Tensor] = {}
    node = json.loads(json.dumps(flatten(tree, "prompt/0", tensors)))
    assert all(path.startswith("prompt/0/") for path in tensors)
    assert equal(tree, unflatten(node, tensors))


def test_a_dictionary_that_looks_like_a_node_is_still_a_dictionary():
    tree = [[torch.zeros(1), {"tensor": "prompt/0", "value": {"list": 1}}]]
    tensors: dict[str, torch.Tensor] = {}
    assert equal(tree, unflatten(flatten(tree, "p", tensors), tensors))


def test_keys_with_slashes_do_not_collide():
    tree = [[torch.zeros(1), {"a/b": torch.ones(1), "a": {"b": torch.full((1,), 2.0)}}]]
    tensors: dict[str, torch.Tensor] = {}
    assert equal(tree, unflatten(flatten(tree, "p", tensors), tensors))


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_results_of_sub_batches_come_back_in_the_order_of_rows(limit):
    prompts = [[entry(4, 1.0)], [entry(5, 2.0)], [entry(4, 3.0)]]
    rows, sizes = torch.tensor([2, 1, 0, 1, 2]), []

    def call(positions, conditioning):
        sizes.append(len(positions))
        assert conditioning[0][0].shape[0] == len(positions)
        return torch.stack([positions.float(), conditioning[0][0][:, 0, 0]], 1)

    found = ConditioningBatcher(prompts).each(rows, limit, call)
    assert torch.equal(found, torch.tensor([[0.0, 3.0], [1.0, 2.0], [2.0, 1.0], [3.0, 2.0], [4.0, 3.0]])) and max(sizes) <= limit


def test_prompts_kept_apart_never_share_a_call():
    prompts, rows = [[entry(4, 1.0)], [entry(4, 2.0)]], torch.tensor([0, 1, 0])
    together, apart = (ConditioningBatcher(prompts, apart).split(rows) for apart in (False, True))
    assert [positions.tolist() for positions, _ in together] == [[0, 1, 2]]
    assert [positions.tolist() for positions, _ in apart] == [[0, 2], [1]]
