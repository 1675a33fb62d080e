"""How many rows fit: the arithmetic of weights, rows, reserve and streaming, and what is said about it."""

import pytest

from stepwise_grpo.training.capacity import GIB, MOST_ROWS, Demand, Room, fit, gib, rows_wanted


def demand(**more) -> Demand:
    return Demand(**{"weights": 8 * GIB, "lora": GIB, "fixed": GIB, "row": 2 * GIB, "block": GIB, **more})


def test_rows_are_what_is_left_after_reserve_weights_lora_and_the_fixed_part():
    found = fit(demand(), Room(total=20 * GIB, reserve=2 * GIB), wanted=100)
    assert found.rows == 4 and found.estimate == 18 * GIB and found.beside_weights == 10 * GIB
    assert found.message == "estimated 18.0 GiB of 20.0 GiB, 4 rows a call"
    assert fit(demand(), Room(total=20 * GIB - 1, reserve=2 * GIB), wanted=100).rows == 3


@pytest.mark.parametrize("wanted, rows", [(3, 3), (10_000, MOST_ROWS)])
def test_no_more_rows_than_there_are_and_than_help(wanted, rows):
    assert fit(demand(), Room(total=10_000 * GIB, reserve=0), wanted=wanted).rows == rows


def test_weights_that_find_no_place_are_streamed_where_the_device_can():
    found = fit(demand(), Room(total=9 * GIB, reserve=GIB, streams=True), wanted=100)
    assert found.rows == 2 and found.estimate == 8 * GIB  # 8 usable, less lora and fixed and two blocks
    assert found.message.endswith("2 rows a call, weights streamed from RAM")
    assert fit(demand(), Room(total=9 * GIB, reserve=GIB), wanted=100).rows == 0
    assert fit(demand(), Room(total=11 * GIB, reserve=GIB, streams=True, kept=0.4), wanted=100).rows == 1  # 6 of 10 GiB for the rest
    assert fit(demand(), Room(total=14 * GIB, reserve=GIB, streams=True), wanted=100).rows == 1  # all weights fit: not streamed
    assert "streamed" not in fit(demand(), Room(total=14 * GIB, reserve=GIB, streams=True), wanted=100).message


def test_not_even_one_row_says_what_it_needs_and_what_to_do():
    found = fit(demand(), Room(total=10 * GIB, reserve=GIB), wanted=4, advice=["set checkpointing to on", "make the pictures smaller"])
    assert found.rows == 0 and found.estimate == 12 * GIB
    assert found.message == "one row of this update needs 12.0 GiB, and of the 10.0 GiB here 9.0 GiB can be used. Try: set checkpointing to on; make the pictures smaller."
    assert fit(demand(), Room(total=6 * GIB, reserve=GIB, streams=True), wanted=4).estimate == 6 * GIB  # the streamed way is the smaller one


def test_rows_that_were_asked_for_are_taken_with_a_word_where_they_are_too_many():
    room = Room(total=20 * GIB, reserve=2 * GIB)
    assert fit(demand(), room, wanted=100, asked=2).rows == 2
    many = fit(demand(), room, wanted=100, asked=6)
    assert many.rows == 6 and many.estimate == 22 * GIB and "more than fits; lower rows_per_call" in many.message
    assert fit(demand(), room, wanted=3, asked=6).rows == 3


def test_a_measured_row_is_told_apart_from_an_estimate():
    assert fit(demand(measured=True), Room(total=20 * GIB, reserve=0), wanted=1).message.startswith("by one measured row 12.0 GiB")


def test_wanted_rows_are_those_of_the_largest_optimiser_step():
    assert rows_wanted(steps=3, members=8, group_size=4, updates=2) == 12
    assert rows_wanted(steps=3, members=10, group_size=5, updates=2) == 18  # 3 + 2 members of each group
    assert rows_wanted(steps=3, members=8, group_size=4, updates=64) == 6


def test_bytes_for_people():
    assert [gib(11.2 * GIB), gib(GIB // 32)] == ["11.2 GiB", "32 MiB"]
