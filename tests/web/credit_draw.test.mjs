// The Credit Visualizer's colours, places and keys.

import assert from "node:assert/strict"
import { test } from "node:test"
import { apart, cellAt, moved, placeOf, SHOWN, shownStates } from "../../web/js/credit/axis.js"
import { colourOf, pixels } from "../../web/js/credit/colours.js"
import { drawn } from "../../web/js/credit/curves.js"

/** @param {number[]} colour relative luminance, WCAG */
const luminance = (colour) => {
    const [r, g, b] = colour.map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
}

test("blue is better, red is worse, pale is nothing, and the limit is symmetric", () => {
    const [worse, nothing, better] = [-1, 0, 1].map((value) => colourOf(value, 1))
    assert.ok(worse[0] > worse[2] + 80 && better[2] > better[0] + 80 && Math.min(...nothing) > 220)
    assert.deepEqual(colourOf(-5, 1), worse)
    assert.deepEqual(colourOf(0.2, 0.2), better)
    assert.deepEqual(colourOf(null, 1), nothing)
})

test("lightness falls from the middle to both ends, alike on both sides", () => {
    for (const sign of [-1, 1]) {
        const lights = Array.from({ length: 21 }, (_, i) => luminance(colourOf((sign * i) / 20, 1)))
        assert.ok(lights.every((light, i) => i === 0 || light < lights[i - 1]))
    }
    for (const value of [0.3, 0.6, 1]) assert.ok(Math.abs(luminance(colourOf(value, 1)) - luminance(colourOf(-value, 1))) < 0.12)
})

test("a pixel lies in the row of its member and the column of its step", () => {
    const data = pixels([[1, 0], [0, 0], [0, -1]], 1)
    assert.equal(data.length, 4 * 3 * 2)
    assert.deepEqual([...data.slice(0, 4)], [...colourOf(1, 1), 255])
    assert.deepEqual([...data.slice(4 * 5, 4 * 6)], [...colourOf(-1, 1), 255])
})

test("few states are all shown; many are thinned and end with the picture", () => {
    assert.deepEqual(shownStates(3), [0, 1, 2, 3])
    assert.deepEqual(shownStates(40), [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40])
    for (const steps of [1, 11, 12, 25, 50, 200]) assert.ok(shownStates(steps).length <= SHOWN && shownStates(steps).at(-1) === steps)
})

test("half a thumbnail is free at both ends of the axis", () => {
    assert.equal(placeOf(0, 9), 5)
    assert.equal(placeOf(9, 9), 95)
    assert.equal(placeOf(20, 40), 50)
})

test("labels that would lie on each other move apart and stay inside", () => {
    assert.deepEqual(apart([10, 90], 12), [10, 90])
    assert.deepEqual(apart([50, 52], 12), [50, 62])
    assert.deepEqual(apart([98, 96], 12), [94, 82])
})

test("keys move the cell and stop at the edges; other keys move nothing", () => {
    const group = { size: 3, steps: 4 }
    assert.deepEqual(moved({ member: 1, step: 1 }, "ArrowRight", group), { member: 1, step: 2 })
    assert.deepEqual(moved({ member: 0, step: 1 }, "ArrowUp", group), { member: 0, step: 1 })
    assert.deepEqual(moved({ member: 2, step: 1 }, "ArrowDown", group), { member: 2, step: 1 })
    assert.deepEqual(moved({ member: 1, step: 1 }, "End", group), { member: 1, step: 3 })
    assert.deepEqual(moved({ member: 1, step: 3 }, "Home", group), { member: 1, step: 0 })
    for (const key of ["a", "toString", "Enter"]) assert.equal(moved({ member: 1, step: 1 }, key, group), undefined)
})

test("the pointer is in a cell, also on the very edge", () => {
    const group = { size: 3, steps: 4 }
    assert.deepEqual([cellAt(0, 0, group), cellAt(0.49, 0.34, group), cellAt(1, 1, group)], [{ member: 0, step: 0 }, { member: 1, step: 1 }, { member: 2, step: 3 }])
})

test("a value between gaps is a line of no length, which is drawn as a dot", () => {
    const y = (/** @type {number} */ value) => value
    assert.equal(drawn([null, null, 7], 2, y).match(/[ML]/g)?.join(""), "ML")
    assert.equal(drawn([1, 2, null, 3], 3, y).match(/[ML]/g)?.join(""), "MLML")
    assert.equal(drawn([null], 1, y), "")
})
