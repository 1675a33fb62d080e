"""What the demo model can be asked for, and how a sentence is read.

A caption has five slots: kind, colour, size, place, background. `parse` finds them in any text and leaves None
where nothing known was said. Pixels are counted from the top left corner of a 128 x 128 picture.
"""

import re
from dataclasses import astuple, dataclass, fields

SIDE = 128  # px, of every picture
KINDS = ("circle", "square", "triangle", "cross")
COLOURS = {  # name: sRGB in [0, 1]
    "red": (0.85, 0.10, 0.12),
    "green": (0.10, 0.60, 0.22),
    "blue": (0.10, 0.28, 0.88),
    "yellow": (0.98, 0.85, 0.10),
    "purple": (0.55, 0.15, 0.70),
    "orange": (0.97, 0.52, 0.08),
}
SIZES = {"small": 17.0, "big": 23.0}  # px, radius of the circle; the other kinds have about its area
PLACES = {  # name: (x, y) of the shape's middle, px
    "centre": (64.0, 64.0),
    "top": (64.0, 32.0),
    "bottom": (64.0, 96.0),
    "left": (32.0, 64.0),
    "right": (96.0, 64.0),
}
BACKGROUNDS = {
    "white": (0.96, 0.96, 0.96),
    "black": (0.06, 0.06, 0.08),
    "grey": (0.52, 0.52, 0.54),
    "pink": (0.99, 0.76, 0.82),
    "brown": (0.40, 0.26, 0.14),
}
SLOTS = {
    "kind": KINDS,
    "colour": tuple(COLOURS),
    "size": tuple(SIZES),
    "place": tuple(PLACES),
    "background": tuple(BACKGROUNDS),
}
SYNONYMS = {
    "disc": "circle", "disk": "circle", "dot": "circle", "ball": "circle", "box": "square", "plus": "cross",
    "violet": "purple", "little": "small", "tiny": "small", "large": "big", "huge": "big",
    "center": "centre", "middle": "centre", "upper": "top", "up": "top", "lower": "bottom", "down": "bottom",
    "gray": "grey",
}  # fmt: skip
PLACE_PHRASES = {
    "centre": "in the centre",
    "top": "at the top",
    "bottom": "at the bottom",
    "left": "on the left",
    "right": "on the right",
}


@dataclass(frozen=True)
class Caption:
    """One request; None in a slot means it was not said."""

    kind: str | None = None
    colour: str | None = None
    size: str | None = None
    place: str | None = None
    background: str | None = None

    def text(self) -> str:
        """The sentence the prompts of this folder use. Slots that are None are left out."""
        words = ["a", self.size, self.colour, self.kind or "shape"]
        if self.place:
            words.append(PLACE_PHRASES[self.place])
        if self.background:
            words.append(f"on a {self.background} background")
        return " ".join(word for word in words if word)


def parse(text: str) -> Caption:
    """Read a caption from any text. Unknown words are ignored; the first word of a slot wins.

    A word right before "background" only ever names the background, so "a red circle on a green background"
    (green is no background the model knows) stays a red circle.
    """
    words = [_singular(word) for word in re.findall(r"[a-z]+", text.lower())]
    said: dict[str, str] = {}
    for word, after in zip(words, words[1:]):
        if after == "background" and word in BACKGROUNDS:
            said.setdefault("background", word)
    for word, after in zip(words, [*words[1:], ""]):
        for slot, known in SLOTS.items():
            if word in known and (slot == "background" or after != "background"):
                said.setdefault(slot, word)
    return Caption(**said)


def _singular(word: str) -> str:
    known = {*SYNONYMS, *(word for words in SLOTS.values() for word in words)}
    ends = ("", "s", "es")  # "cross" keeps its s, "crosses" and "boxes" lose two letters
    word = next((stem for end in ends if (stem := word.removesuffix(end)) in known), word)
    return SYNONYMS.get(word, word)


def all_captions() -> list[Caption]:
    """Every complete caption (1,200), in a fixed order."""
    captions = [()]
    for field in fields(Caption):
        captions = [(*head, word) for head in captions for word in SLOTS[field.name]]
    return [Caption(*words) for words in captions]


def held_out(caption: Caption) -> bool:
    """Whether this complete caption is kept out of all training (every eleventh one)."""
    return code(caption) % 11 == 5


def code(caption: Caption) -> int:
    """Index of a complete caption in `all_captions`."""
    index = 0
    for slot, word in zip(SLOTS, astuple(caption)):
        index = index * len(SLOTS[slot]) + SLOTS[slot].index(word)
    return index
