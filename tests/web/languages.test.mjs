// Nodes in the page's language: what is translated, and what must stay because workflows hold it.

import assert from "node:assert/strict"
import { test } from "node:test"
import { translateDef, translateNode } from "../../web/js/languages/translate.js"

const TEXTS = {
    display_name: "Läufer",
    description: "Läuft.",
    inputs: { model: { name: "Modell", tooltip: "Ein Modell." }, steps: { name: "Schritte", tooltip: "Wie viele." } },
    outputs: { 0: { name: "MODELL", tooltip: "Dasselbe." }, 1: { name: "Notiz", tooltip: "Ein Satz." } },
}

const definition = () => ({
    name: "Runner",
    display_name: "Runner",
    description: "Runs.",
    category: "Ours",
    input: { required: { model: ["MODEL", { tooltip: "A model." }], steps: ["INT", { default: 3, tooltip: "How many." }] }, optional: { more: ["INT"] } },
    output: ["MODEL", "STRING"],
    output_name: ["MODEL", "note"],
    output_tooltips: ["The same.", "A sentence."],
})

test("a definition gets its texts and keeps names, defaults and types", () => {
    const def = definition()
    translateDef(def, TEXTS, { Ours: "Unsere" })
    assert.deepEqual([def.display_name, def.description, def.category], ["Läufer", "Läuft.", "Unsere"])
    assert.deepEqual(def.input.required.steps, ["INT", { default: 3, tooltip: "Wie viele." }])
    assert.deepEqual(def.input.optional.more, ["INT"])
    assert.deepEqual(def.output_tooltips, ["Dasselbe.", "Ein Satz."])
    assert.deepEqual([def.name, def.output_name], ["Runner", ["MODEL", "note"]])
})

test("what a language lacks stays as it is", () => {
    const def = definition()
    translateDef(def, {})
    assert.deepEqual(def, definition())
})

test("a node shows translated widgets and sockets under the same names", () => {
    const node = {
        widgets: [{ name: "steps", label: "steps" }, { name: "control", label: "control" }],
        inputs: [{ name: "model", localized_name: "model" }],
        outputs: [{ name: "MODEL", type: "MODEL", localized_name: "page's word" }, { name: "note", type: "STRING", localized_name: "note" }],
    }
    translateNode(node, TEXTS)
    assert.deepEqual(node.widgets.map((widget) => [widget.name, widget.label]), [["steps", "Schritte"], ["control", "control"]])
    assert.deepEqual(node.inputs, [{ name: "model", localized_name: "Modell" }])
    assert.deepEqual(node.outputs.map((output) => output.localized_name), ["page's word", "Notiz"])
})

test("a node without widgets or sockets is left alone", () => {
    const node = {}
    translateNode(node, TEXTS)
    assert.deepEqual(node, {})
})
