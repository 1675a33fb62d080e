"""docs/models.md and the help page say what training/defaults.py and docs/model_sizes.json say."""

import pytest

from stepwise_grpo.tools.models import PAGES, ROOT, SIZES, cards, updated
from stepwise_grpo.training.defaults import ROWS
from stepwise_grpo.training.job import read_json

PAGE = "docs/models.md"
TEXT = (ROOT / PAGE).read_text("utf-8")
BF16 = {"weights": 5 * 2**30, "lora_and_optimiser": 2**29, "peak_of_one_row": 2**28, "card_gib": 12, "card_gib_streaming": 6}
FP8 = {"weights": 2.5 * 2**30, "peak_of_one_row": 2**29, "card_gib": 8, "card_gib_streaming": None}
SIZE_OF = {"models": {"SD3.5 Medium": {"parameters": 2_243_171_520, "text_tokens": 154, "targets": "attention", "rank": 32, "cfg": 4.5, "512": {"bf16": BF16, "fp8": FP8}}}}


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_are_current(page):
    text = (ROOT / page).read_text("utf-8")
    assert updated(page, text, read_json(SIZES)) == text, "run: python dev.py models"


def test_every_row_is_on_the_page_with_all_its_values():
    lines = TEXT.split("<!-- end of sources -->")[0].splitlines()
    for row in ROWS:
        (line,) = [line for line in lines if line.startswith(f"| {row.name} |")]
        assert [cell.strip() for cell in line.split("|")][2:6] == [row.kind, str(row.steps), str(row.view_steps), f"{row.cfg:g}"]
        (line,) = [line for line in lines if line.startswith(f"- **{row.name}** (")]
        assert f"learning_rate {row.learning_rate:g}" in line and all(f"*{source}*:" in line for source in set(row.sources.values()) - unused(row))


def unused(row):
    """Sources that only stand for values the row does not have."""
    empty = {name for name in row.sources if getattr(row, name) is None}
    return {row.sources[name] for name in empty} - {row.sources[name] for name in row.sources if name not in empty}


def test_an_outdated_table_is_replaced_and_the_rest_stays():
    spoilt = TEXT.replace("| FLUX.1 dev |", "| FLUX.0 |")
    assert spoilt != TEXT
    assert updated(PAGE, spoilt, read_json(SIZES)) == TEXT


def test_a_page_without_its_marks_is_not_written():
    with pytest.raises(ValueError, match="must have each of these lines once"):
        updated(PAGE, TEXT.replace("<!-- end of sizes -->", ""), None)


def test_smallest_cards_are_shown_as_far_as_they_were_computed():
    assert cards(None) == "Not computed yet."
    assert cards(SIZE_OF).splitlines()[2:] == ["| SD3.5 Medium | 2.2 B | attention, rank 32; 4.5 | 512 | 5 / 2.5 | 0.5 | 0.2 / 0.5 | 12 / 8 | 6 / - |"]
    assert cards(SIZE_OF) in updated(PAGE, TEXT, SIZE_OF)
