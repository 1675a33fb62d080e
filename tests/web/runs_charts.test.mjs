// From events to curves and cells; names of states; what is pinned.
// @ts-nocheck: made-up runs, nodes and servers have only what is asked of them

import assert from "node:assert/strict"
import { test } from "node:test"
import { mixed } from "../../web/js/draw/colours.js"
import { SCALE } from "../../web/js/runs/heat.js"
import { isLinked, pin, pinned, runOf } from "../../web/js/runs/pins.js"
import { stateOf } from "../../web/js/runs/run_list.js"
import { heatCells, nearest, seriesOf, strongestStep } from "../../web/js/runs/series.js"
import { shownVersions } from "../../web/js/runs/versions.js"
import { workflowOf } from "../../web/js/runs/workflow.js"

const look = (version, reward_mean, series = "s") => ({ version, series, reward_mean, rewards: null, reward_std: null, at: 5 })

test("curves share their versions; a version that went back leaves a gap and a mark", () => {
    const series = seriesOf([{ version: 1, at: 0, reward_mean: 0.5, reward_std: 0.1, kl: 0, clip_fraction: 0.2, gain_by_step: [0.1, null] }, { version: 2, at: 0, back_to: 1 }, { version: 3, at: 0, reward_mean: 0.6, kl: 0 }], [look(1, 0.4, "old"), look(3, 0.7)])
    assert.deepEqual(series.versions, [1, 2, 3])
    assert.deepEqual(series.reward, [0.5, null, 0.6])
    assert.deepEqual(series.spread, [0.1, null, null])
    assert.deepEqual(series.heldOut, [null, null, 0.7])
    assert.deepEqual(series.gains, [[0.1, null], [], []])
    assert.deepEqual(series.backs, [{ x: 2, to: 1 }])
    assert.equal(series.klOff, true)
})

test("version 0 is on the axis when somebody looked at it; a version beyond the events is not", () => {
    assert.deepEqual(seriesOf([{ version: 1, at: 0, kl: 0.1 }], [look(0, 0.3), look(1, 0.4), look(9, 0.5)]).versions, [0, 1])
    assert.equal(seriesOf([{ version: 1, at: 0, kl: 0.1 }], []).klOff, false)
})

test("cells of the heat map are means over neighbours, at most as many as asked for", () => {
    assert.deepEqual(heatCells([[1, 2], [3, null], [5, 6], []], 2), { rows: 2, columns: 2, cells: [[2, 2], [5, 6]], highest: 6 })
    assert.deepEqual(heatCells([[1]], 100).cells, [[1]])
    assert.deepEqual(heatCells([], 10), { rows: 0, columns: 0, cells: [], highest: 0 })
    assert.deepEqual(strongestStep([[0.1, 0.5], [0.1, 0.3]]), { step: 1, gain: 0.4 })
    assert.equal(strongestStep([[], [null]]), null)
})

test("the colour scale is even: each colour lighter than the one before", () => {
    const light = [0, 0.2, 0.4, 0.6, 0.8, 1].map((share) => { const [r, g, b] = mixed(SCALE, share); return 0.2126 * r + 0.7152 * g + 0.0722 * b })
    assert.deepEqual(light, light.toSorted((a, b) => a - b))
    assert.deepEqual(mixed(SCALE, 2), [254, 232, 56])
    assert.deepEqual(mixed(SCALE, -1), [0, 34, 78])
})

test("the nearest version", () => {
    assert.deepEqual([-5, 1.4, 1.6, 99].map((x) => nearest([1, 2, 7], x)), [0, 0, 1, 2])
    assert.equal(nearest([], 1), -1)
})

const node = (type, widgets, more = {}) => ({ type, mode: 0, title: type, widgets: Object.entries(widgets).map(([name, value]) => ({ name, value })), inputs: [], ...more })
const live = (run, version, more) => node("StepwiseGRPO_LiveLoRA", { run_name: run, version }, more)
const linkOf = (name) => ({ inputs: [{ name, widget: { name }, link: 3 }] })

test("pinning sets the version of the run's nodes only, and says how many", () => {
    const nodes = [live("a", -1), live("a", 3), live("b", -1), live("a", -1, linkOf("version"))]
    assert.deepEqual(pinned(nodes, "a"), { nodes: 3, versions: [3] })
    let called = 0
    nodes[0].widgets[1].callback = (value) => (called = value)
    assert.deepEqual(pin(nodes, "a", 7), { set: 2, linked: 1, others: 1 })
    assert.deepEqual(nodes.map((one) => one.widgets[1].value), [7, 7, -1, -1])
    assert.equal(called, 7)
    assert.deepEqual(pinned(nodes, "a").versions, [7])
    pin(nodes, "a", -1)
    assert.deepEqual(pinned(nodes, "a").versions, [])
})

test("a run name that a link decides is unknown; names are compared as the server writes them", () => {
    assert.equal(runOf(live("a", -1, linkOf("run_name"))), null)
    assert.equal(runOf(live("e\u0301", -1)), "\u00e9")
    assert.equal(isLinked(live("a", 1, { inputs: [{ name: "version", widget: { name: "version" }, link: null }] }), "version"), false)
})

test("what the open workflow says of a run", () => {
    const nodes = [node("StepwiseGRPO_GRPOLoRATrainer", { run_name: "a" }), live("a", 4), node("StepwiseGRPO_StepwiseSDESampler", { seed: 0, control_after_generate: "fixed" }, { title: "My sampler" })]
    const of = (type) => nodes.filter((one) => one.type === type)
    assert.deepEqual(workflowOf(of, "a"), { trains: true, linked: false, fixedSeeds: ["My sampler"], pinned: [4], nodes: 1 })
    assert.equal(workflowOf(of, "b").trains, false)
    nodes[0].mode = 4
    nodes[2].widgets[1].value = "increment"
    assert.deepEqual(workflowOf(of, "a"), { trains: false, linked: false, fixedSeeds: [], pinned: [4], nodes: 1 })
})

test("the state of a run in a word", () => {
    const of = (more, alive = true) => stateOf({ name: "a", kind: "graph", version: 1, phase: "waiting", message: "", at: 0, waiting: 0, paused: false, going_back_to: null, reward: null, base: "", rejected: 0, dropped: 0, ...more }, alive).key
    assert.deepEqual([of({}), of({ waiting: 1 }), of({ waiting: 1 }, false), of({ phase: "training" }), of({ paused: true, phase: "training" }), of({ going_back_to: 3 }), of({ kind: "headless" }), of({ kind: "headless", phase: "stopped" })], ["idle", "queued", "needsTrainer", "training", "paused", "goingBack", "watched", "stopped"])
})

test("versions are shown the newest first, with version 0 where somebody looked at it", () => {
    const versions = [1, 2].map((version) => ({ version, at: 0, lora_name: "", reward: null, picture: true, look: false, ema: false, back_to: null }))
    const detail = { summary: null, job: null, events: [], versions, looks: [look(0, 0.1)], notes: {}, findings: null }
    assert.deepEqual(shownVersions(detail).map((one) => one.version), [2, 1, 0])
    assert.deepEqual(shownVersions({ ...detail, looks: [] }).map((one) => one.version), [2, 1])
})
