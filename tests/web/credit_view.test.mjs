// The Credit Visualizer's data: gains, sums, best and worst, the colours' limit, and what is said of them.

import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { before, test } from "node:test"
import { decimalsFor, facts, fixed, headline, spoken, sumLine, sumOf, withSign } from "../../web/js/credit/story.js"
import { colourLimit, gainsOf, groupOf, lacking, lookedAt, mostTelling, rewardScale } from "../../web/js/credit/view.js"
import { useWords } from "../../web/js/words.js"

before(() => useWords(JSON.parse(readFileSync(new URL("../../locales/en/main.json", import.meta.url), "utf-8")).stepwiseGrpo))

/** Two prompts of two pictures, three steps; the second prompt differs more. @returns {any} */
const made = () => ({
    format: 1,
    texts: ["a", "b"],
    group_size: 2,
    times: [1, 0.6, 0.3, 0],
    stochastic: [0, 1],
    scheme: "centred",
    law: "flow",
    eta: 0.7,
    reward: "placement",
    rewards: [
        [0.5, 0.5, 0.6, 0.6],
        [0.6, 0.4, 0.9, 0.5],
        [0.7, 0.5, 0.8, 0.5],
        [0.7, 0.5, 0.93, 0.5],
    ],
    advantages: [
        [1, -1, 2, -2],
        [0, 0, 0.5, -0.5],
        [0, 0, 0, 0],
    ],
    thumbnails: null,
})

const uniform = () => {
    const view = made()
    view.rewards = view.rewards.map((/** @type {number[]} */ row, /** @type {number} */ k) => (k === 3 ? row : row.map(() => null)))
    return view
}

const near = (/** @type {number | null | undefined} */ value, /** @type {number} */ wanted) => assert.ok(Math.abs((value ?? NaN) - wanted) < 1e-9, `${value} is not ${wanted}`)

test("a group has its own rows, and gains add up to final minus start", () => {
    const group = groupOf(made(), 1)
    assert.deepEqual(group.rewards.map((row) => row[0]), [0.6, 0.9, 0.8, 0.93])
    for (const member of [0, 1]) near(group.gains.reduce((sum, row) => sum + (row[member] ?? NaN), 0), group.sums[member] ?? NaN)
    near(group.sums[0], 0.33)
    near(group.sums[1], -0.1)
    assert.deepEqual([group.size, group.steps, group.text, group.advantages[0]], [2, 3, "b", [2, -2]])
})

test("best, worst, the step that earned most and the member that lost most", () => {
    const group = groupOf(made(), 1)
    assert.deepEqual([group.best, group.worst, group.loser, group.earner?.step], [0, 1, 1, 0])
    near(group.earner?.gain, 0.1)
    const falling = made()
    falling.rewards = [[9, 9, 9, 9], [8, 8, 8, 8], [7.5, 7.5, 7.5, 7.5], [5, 5, 5, 6]]
    assert.equal(groupOf(falling, 1).earner?.step, 1)
    assert.match(headline(groupOf(falling, 1), 1), /^No step earned anything on average; step 2 of 3 lost least: −0.5\./)
})

test("without previews the map shows advantages, and there are no gains", () => {
    const view = uniform()
    const group = groupOf(view, 0)
    assert.equal(lookedAt(view), false)
    assert.deepEqual([group.values, group.earner, group.loser, group.sums], [group.advantages, null, null, [null, null]])
    assert.deepEqual([group.best, group.worst], [0, 1])
    assert.equal(headline(group, 2), "Picture 1 scored best (0.70), picture 2 worst (0.50). This credit scheme looks at the finished pictures only.")
    assert.ok(!facts(group, { member: 0, step: 0 }, 2).some(([name]) => name === "gain"))
    near(rewardScale(view), 0.215)
})

test("the colours' limit is the figure's: the 0.98 quantile, of gains or of advantages", () => {
    const view = made()
    const sizes = gainsOf(view.rewards).flat().map((gain) => Math.abs(gain ?? NaN)).sort((a, b) => a - b)
    near(colourLimit(view), sizes[10] + 0.78 * (sizes[11] - sizes[10])) // 0.98 * 11 = 10.78
    assert.equal(colourLimit(uniform()), 2)
    assert.equal(colourLimit({ ...made(), rewards: made().rewards.map((/** @type {number[]} */ row) => row.map(() => 1)) }), 1e-6)
})

test("the prompt whose pictures differ most comes first", () => {
    assert.equal(mostTelling(made()), 1)
    assert.equal(mostTelling({ ...made(), rewards: made().rewards.map((/** @type {number[]} */ row) => row.map(() => 1)) }), 0)
})

test("the headline names step and picture, counted from 1, and its numbers add up as they are read", () => {
    assert.equal(headline(groupOf(made(), 1), 2), "Step 1 of 3 earned most: +0.10 on average. Picture 2 lost most: −0.10 (start 0.60 → final 0.50).")
    const rising = made()
    rising.rewards[3][3] = 0.7
    assert.match(headline(groupOf(rising, 1), 2), /Picture 2 gained least: \+0\.10 \(start 0\.60 → final 0\.70\)\.$/)
    const odd = made()
    odd.rewards[0] = [0.4749, 0.4749, 0.4749, 0.4749]
    odd.rewards[3] = [0.1051, 0.9, 0.1051, 0.9]
    assert.match(headline(groupOf(odd, 0), 2), /−0\.36 \(start 0\.47 → final 0\.11\)/)
    assert.deepEqual(sumOf(groupOf(odd, 0), 0, 2), { start: "0.47", gains: "−0.36", final: "0.11" })
    assert.equal(sumLine(groupOf(made(), 1), 0, 2), "Picture 1: start 0.60 + gains 0.33 = final 0.93")
})

test("a group whose pictures are all alike teaches nothing", () => {
    const view = made()
    view.rewards = view.rewards.map((/** @type {number[]} */ row) => row.map(() => row[0]))
    assert.match(headline(groupOf(view, 0), 2), /teaches nothing/)
    view.rewards[1][1] += 0.01
    assert.doesNotMatch(headline(groupOf(view, 0), 2), /teaches nothing/)
})

test("the facts of a cell", () => {
    const group = groupOf(made(), 1)
    assert.equal(spoken(group, { member: 0, step: 1 }, 2), "Picture 1 · step 2 of 3, time 0.60 → 0.30, reward 0.90 → 0.80, gain −0.10, advantage +0.50, random yes")
    assert.match(spoken(group, { member: 1, step: 2 }, 2), /random no/)
})

test("numbers have as many digits as their differences need, a true minus, and no −0", () => {
    assert.deepEqual([0.31, 5, 40, 0.004, 1e-9].map(decimalsFor), [2, 1, 0, 4, 6])
    assert.deepEqual([fixed(-0.001, 2), fixed(-0.5, 1), fixed(null, 2), withSign(0.001, 2), withSign(0.25, 2)], ["0.00", "−0.5", "–", "0.00", "+0.25"])
})

test("a damaged view is told before anything is drawn", () => {
    assert.equal(lacking(made()), undefined)
    assert.equal(lacking(null), "format")
    assert.equal(lacking({ ...made(), format: 2 }), "format")
    assert.equal(lacking({ ...made(), times: [1] }), "times")
    assert.equal(lacking({ ...made(), rewards: made().rewards.slice(1) }), "rewards")
    assert.equal(lacking({ ...made(), advantages: [[1], [1], [1]] }), "advantages")
})
