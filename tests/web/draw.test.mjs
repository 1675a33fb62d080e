// Places, ticks, texts: what the charts are drawn with.

import assert from "node:assert/strict"
import { test } from "node:test"
import { path, pieces } from "../../web/js/draw/line_chart.js"
import { extent, linear, shown, ticks } from "../../web/js/draw/scales.js"

test("a scale maps its ends, and one value alone to the middle", () => {
    const scale = linear(0, 4, 10, 30)
    assert.deepEqual([0, 1, 4].map(scale), [10, 15, 30])
    assert.equal(linear(2, 2, 0, 10)(2), 5)
})

test("extent leaves out what is no number", () => {
    assert.deepEqual(extent([null, 3, undefined, NaN, -1]), [-1, 3])
    assert.equal(extent([null, Infinity]), undefined)
})

test("ticks are round, within the range, and free of rounding noise", () => {
    assert.deepEqual(ticks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1])
    assert.deepEqual(ticks(0.62, 0.97, 3), [0.8])
    assert.deepEqual(ticks(-0.3, 0.3, 3), [-0.2, 0, 0.2])
    assert.deepEqual(ticks(1, 1, 3), [1])
})

test("numbers are short", () => {
    assert.deepEqual([0, 0.12345, -0.5, 12345, 1e-5, null, NaN].map(shown), ["0", "0.123", "−0.5", "12300", "1.0e−5", "–", "–"])
})

test("a gap divides a line", () => {
    assert.deepEqual(pieces([1, 2, null, 3, null]), [[0, 1], [3]])
    assert.deepEqual(pieces([]), [])
    assert.equal(path([[0, 1], [2.04, 3]]), "M0.0 1.0L2.0 3.0")
})
