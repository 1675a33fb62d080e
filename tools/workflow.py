"""An editor-format workflow (what lies in workflows/ and what the page saves) as the API form the server queues.

The page does this itself; without a page it has to be done here: widget values are a bare list in the order of the
node's widgets, with an extra value after every number that has a "control after generate".
"""

from typing import Any

WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
NOTES = ("Note", "MarkdownNote")
MUTED, BYPASSED = 2, 4


class WorkflowError(ValueError):
    """The workflow does not fit the server's nodes; the message names the node."""


def api_form(workflow: dict[str, Any], object_info: dict[str, Any]) -> dict[str, Any]:
    """{node id: {class_type, inputs, _meta}} for ``POST /prompt``; ``object_info`` as ``GET /object_info`` gives it."""
    nodes = {node["id"]: node for node in workflow["nodes"]}
    links = {link[0]: link for link in workflow["links"]}
    form = {}
    for id, node in nodes.items():
        if node["type"] in (*NOTES, "Reroute"):
            continue
        if node.get("mode", 0) in (MUTED, BYPASSED):
            raise WorkflowError(f"node {id} ({node['type']}) is muted or bypassed; the API form knows no such thing")
        if node["type"] not in object_info:
            raise WorkflowError(f"node {id}: the server has no node {node['type']!r}")
        form[str(id)] = {
            "class_type": node["type"],
            "inputs": {**widget_values(node, object_info[node["type"]]), **linked(node, nodes, links)},
            "_meta": {"title": node.get("title") or object_info[node["type"]]["display_name"]},
        }
    return form


def widget_values(node: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    """The node's widget values by name; a value the workflow lacks is the widget's default."""
    values = node.get("widgets_values") or []
    if not isinstance(values, list):
        raise WorkflowError(f"node {node['id']} ({node['type']}) keeps its widget values in another way than a list")
    given, result = iter(values), {}
    for name, kind, options in inputs(info):
        if not is_widget(kind, options):
            continue
        value = next(given, None)
        result[name] = default(kind, options) if value is None else value
        if has_control(name, kind, options):
            next(given, None)
    if next(given, None) is not None:
        raise WorkflowError(f"node {node['id']} ({node['type']}) has more widget values than the server's node has widgets")
    return result


def inputs(info: dict[str, Any]) -> list[tuple[str, Any, dict[str, Any]]]:
    """(name, type, options) of a node's inputs in the order of the page."""
    result = []
    for group in ("required", "optional"):
        specs = info["input"].get(group, {})
        for name in info.get("input_order", {}).get(group) or specs:
            kind, *options = specs[name]
            result.append((name, kind, options[0] if options else {}))
    return result


def is_widget(kind: Any, options: dict[str, Any]) -> bool:
    return (isinstance(kind, list) or kind in WIDGETS) and not options.get("forceInput")


def has_control(name: str, kind: Any, options: dict[str, Any]) -> bool:
    """Whether the page puts a "control after generate" behind the widget: where the node asks for one, else by its name."""
    asked = options.get("control_after_generate")
    return bool(asked) if asked is not None else kind == "INT" and name in ("seed", "noise_seed")


def default(kind: Any, options: dict[str, Any]) -> Any:
    if "default" in options:
        return options["default"]
    choices = kind if isinstance(kind, list) else options.get("options", [])
    if choices or not isinstance(kind, str):
        return choices[0] if choices else ""
    return {"INT": 0, "FLOAT": 0.0, "BOOLEAN": False}.get(kind, "")


def linked(node: dict[str, Any], nodes: dict[int, dict[str, Any]], links: dict[int, list]) -> dict[str, Any]:
    """[node id, output number] of every connected input."""
    result = {}
    for entry in node.get("inputs", []):
        link = entry.get("link")
        while link is not None:
            _, source, slot, *_ = links[link]
            if nodes[source]["type"] != "Reroute":
                result[entry["name"]] = [str(source), slot]
                break
            link = nodes[source]["inputs"][0].get("link")
    return result
