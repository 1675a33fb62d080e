"""A workflow as the page saves it. Slots, their order, and the widgets come from what the server says about its nodes."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

from ..workflow import NOTES, default, has_control, inputs, is_widget
from .parts import Group, Part, Workflow

TITLE, GAP, MARGIN, GROUP_TITLE, BETWEEN = 30, 24, 10, 46, 20  # px; a node's title stands above its position
SLOT, WIDGET, TEXT, BOTTOM = 20, 24, 60, 16
VIEW = {"scale": 0.58, "offset": [130, 230]}  # where the page looks first: all of it, beside the page's own bars, with text still drawn
PACK = "stepwise-flow-grpo"


def text_of(workflow: Workflow, object_info: dict[str, Any]) -> str:
    """The content of the workflow's file."""
    return json.dumps(build(workflow, object_info), indent=1, ensure_ascii=False) + "\n"


def build(workflow: Workflow, info: dict[str, Any]) -> dict[str, Any]:
    """The file as data. ``info``: what ``GET /object_info`` gives. A name that the server does not know is a ``ValueError``."""
    ids = dict(_numbered(workflow))
    links = list(_links(workflow, ids, info))
    boxes, groups = _placed(workflow, info)
    nodes = [_node(part, ids[part.key], boxes[part.key], links, info) for part in workflow.parts]
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PACK}/{workflow.name}")),
        "revision": 0,
        "last_node_id": max(ids.values()),
        "last_link_id": len(links),
        "nodes": nodes,
        "links": links,
        "groups": groups,
        "config": {},
        "extra": {"ds": VIEW},
        "version": 0.4,
    }


def _numbered(workflow: Workflow) -> Iterator[tuple[str, int]]:
    """(key, number) of every part."""
    taken = {part.id for part in workflow.parts}
    free = (number for number in range(1, 10_000) if number not in taken)
    keys = [part.key for part in workflow.parts]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{workflow.name}: two parts share a key")
    for part in workflow.parts:
        yield part.key, part.id or next(free)


def _links(workflow: Workflow, ids: dict[str, int], info: dict[str, Any]) -> Iterator[list[Any]]:
    """[number, source, its output, target, its input, type] of every link, in the order of the target's inputs."""
    parts, number = {part.key: part for part in workflow.parts}, 0
    for part in workflow.parts:
        slots = [name for name, _, _ in slots_of(part, info)]
        for name in sorted(part.links, key=slots.index):
            key, _, output = part.links[name].partition(".")
            source = info[parts[key].kind]
            if source["output_name"].count(output) != 1:
                raise ValueError(f"{workflow.name}: {parts[key].kind} has not one output {output!r} but {source['output_name']}")
            slot, number = source["output_name"].index(output), number + 1
            kind = source["output"][slot]
            yield [number, ids[key], slot, ids[part.key], slots.index(name), "COMBO" if isinstance(kind, list) else kind]


def slots_of(part: Part, info: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """(name, type, whether it is a widget's) of every input as the page orders them: sockets, then widgets."""
    if part.kind in NOTES:
        return []
    found = [(name, "COMBO" if isinstance(kind, list) else kind, is_widget(kind, options)) for name, kind, options in inputs(info[part.kind])]
    return sorted(found, key=lambda slot: slot[2])


def _node(part: Part, id: int, box: list[list[int]], links: list[list[Any]], info: dict[str, Any]) -> dict[str, Any]:
    node = {"id": id, "type": part.kind, "pos": box[0], "size": box[1], "flags": {}, "order": id - 1, "mode": 0}
    node |= {"inputs": _inputs(part, id, links, info), "outputs": _outputs(part, id, links, info)}
    node["properties"] = _properties(part, info)
    node["widgets_values"] = widget_list(part, info)
    node |= {"title": part.title} if part.title else {}
    return node | (dict(zip(("color", "bgcolor"), part.colours)) if part.colours else {})


def _inputs(part: Part, id: int, links: list[list[Any]], info: dict[str, Any]) -> list[dict[str, Any]]:
    result = []
    for slot, (name, kind, widget) in enumerate(slots_of(part, info)):
        link = next((link[0] for link in links if link[3:5] == [id, slot]), None)
        result.append({"name": name, "type": kind, "link": link, **({"widget": {"name": name}} if widget else {})})
    return result


def _outputs(part: Part, id: int, links: list[list[Any]], info: dict[str, Any]) -> list[dict[str, Any]]:
    if part.kind in NOTES:
        return []
    named = zip(info[part.kind]["output_name"], info[part.kind]["output"])
    leaving = lambda slot: [link[0] for link in links if link[1:3] == [id, slot]]
    return [{"name": name, "type": "COMBO" if isinstance(kind, list) else kind, "links": leaving(slot)} for slot, (name, kind) in enumerate(named)]


def _properties(part: Part, info: dict[str, Any]) -> dict[str, Any]:
    if part.kind in NOTES:
        return {}
    ours = info[part.kind]["python_module"].startswith("custom_nodes.")
    known = {"Node name for S&R": part.kind, "cnr_id": PACK if ours else "comfy-core"}
    return known | ({"models": [vars(model) for model in part.models]} if part.models else {})


def widget_list(part: Part, info: dict[str, Any]) -> list[Any]:
    """Widget values in the page's order. The seed that counts up is "increment"; one that the part fixes is written as (value, "fixed")."""
    if part.kind in NOTES:
        return [part.values["text"]]
    result, left = [], dict(part.values)
    for name, kind, options in inputs(info[part.kind]):
        if is_widget(kind, options):
            value = left.pop(name) if name in left else default(kind, options)
            value, control = value if isinstance(value, tuple) else (value, "increment")
            result += [value, control] if has_control(name, kind, options) else [value]
    if left:
        raise ValueError(f"{part.kind} has no widget {', '.join(left)}")
    return result


def _height(part: Part, info: dict[str, Any]) -> int:
    """At least what the page needs to draw the node."""
    if part.kind in NOTES:
        return part.room
    widgets = [(name, kind, options) for name, kind, options in inputs(info[part.kind]) if is_widget(kind, options)]
    rows = sum(1 + has_control(*widget) for widget in widgets if not widget[2].get("multiline"))
    texts = sum(bool(options.get("multiline")) for _, _, options in widgets)
    slots = max(len(slots_of(part, info)) - len(widgets), len(info[part.kind]["output"]))
    return slots * SLOT + rows * WIDGET + texts * TEXT + BOTTOM + part.room


def _placed(workflow: Workflow, info: dict[str, Any]) -> tuple[dict[str, list[list[int]]], list[dict[str, Any]]]:
    """{key: [position, size]} and the frames of the groups."""
    boxes, frames, right = {}, [], 0
    for band in workflow.bands:
        left, bottom = right, 0
        for row in band:
            x, y = left, bottom
            for group in row:
                width, height = _fill(group, x, y, info, boxes)
                frames.append({"id": len(frames) + 1, "title": group.title, "bounding": [x, y, width, height], "color": group.colour, "font_size": 24, "flags": {}})
                x, bottom = x + width + BETWEEN, max(bottom, y + height + BETWEEN)
            right = max(right, x)
    return boxes, frames


def _fill(group: Group, x: int, y: int, info: dict[str, Any], boxes: dict[str, list[list[int]]]) -> tuple[int, int]:
    """Put the group's parts into ``boxes``; the group's width and height."""
    left, bottom = x + MARGIN, y
    for parts, width in zip(group.columns, group.widths):
        top = y + GROUP_TITLE + TITLE
        for part in parts:
            height = _height(part, info)
            boxes[part.key] = [[left, top], [width, height]]
            top += height + TITLE + GAP
        left, bottom = left + width + MARGIN, max(bottom, top - TITLE - GAP)
    return left - x, bottom + MARGIN - y
