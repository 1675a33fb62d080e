// The page's texts: language, fallback, values.

import assert from "node:assert/strict"
import { test } from "node:test"
import { t, useWords } from "../../web/js/words.js"

test("a text comes in the artist's language, else in English, else as its key", () => {
    useWords({ runs: { pause: "Pause", stop: "Stop {name}" } }, { runs: { pause: "Anhalten" } })
    assert.equal(t("runs.pause"), "Anhalten")
    assert.equal(t("runs.stop", { name: "a" }), "Stop a")
    assert.equal(t("runs.nothing"), "runs.nothing")
    assert.equal(t("runs"), "runs")
})

test("values are put in as they are, and only where they are asked for", () => {
    useWords({ line: "{a} of {b}, {c}" })
    assert.equal(t("line", { a: "$1", b: 2 }), "$1 of 2, {c}")
})
