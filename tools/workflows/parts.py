"""What a workflow is made of: parts (nodes) in columns, columns in titled groups, groups in rows and bands."""

from dataclasses import dataclass, field
from typing import Any

BLUE, GREEN, PURPLE, BROWN, GREY = "#3f789e", "#5a8a5a", "#8064a2", "#a1795a", "#68707a"  # group colours, readable on dark and light canvases
POSITIVE, NEGATIVE = ("#232", "#353"), ("#322", "#533")  # ComfyUI's own node colours for the two prompts


@dataclass(frozen=True)
class Model:
    """A file a loader asks for, as ComfyUI's dialogue for missing models wants it."""

    name: str
    url: str
    directory: str


@dataclass(frozen=True)
class Part:
    """One node."""

    key: str
    """The name by which links of this workflow call it."""
    kind: str
    """The node's class on the server."""
    links: dict[str, str] = field(default_factory=dict)
    """{input: "key.OUTPUT"} with the output's name as the page shows it."""
    values: dict[str, Any] = field(default_factory=dict)
    """Widget values that differ from the node's defaults, by name."""
    title: str = ""
    id: int = 0
    """0 = the next free number."""
    room: int = 0
    """Height below the widgets, px: for what the node shows, or for a text that is written in it."""
    colours: tuple[str, str] | None = None
    models: tuple[Model, ...] = ()


@dataclass(frozen=True)
class Group:
    """A titled frame around columns of parts."""

    title: str
    colour: str
    columns: tuple[tuple[Part, ...], ...]
    widths: tuple[int, ...]
    """Width of each column, px."""

    @property
    def parts(self) -> list[Part]:
        return [part for column in self.columns for part in column]


@dataclass(frozen=True)
class Workflow:
    """A file in workflows/."""

    name: str
    bands: tuple[tuple[tuple[Group, ...], ...], ...]
    """From left to right. A band is rows from top to bottom, and a row is groups beside each other."""

    @property
    def groups(self) -> list[Group]:
        return [group for band in self.bands for row in band for group in row]

    @property
    def parts(self) -> list[Part]:
        """In the order of their numbers: those with one of their own, then the others as they are written."""
        parts = [part for group in self.groups for part in group.parts]
        return sorted(parts, key=lambda part: part.id or len(parts) + 1000)


def column(title: str, colour: str, width: int, *parts: Part) -> Group:
    """A group of one column."""
    return Group(title, colour, (parts,), (width,))
