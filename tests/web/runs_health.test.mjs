// The sentence about a run, for courses whose answer is known.
// @ts-nocheck: made-up runs, nodes and servers have only what is asked of them

import assert from "node:assert/strict"
import { test } from "node:test"
import { ENOUGH, FAR, healthOf, MUCH_CLIPPED, NO_SPREAD, PATIENCE, trend } from "../../web/js/runs/health.js"

const run = (rewards, more = {}) => rewards.map((reward_mean, i) => ({ version: i + 1, at: i, reward_mean, reward_std: 0.3, kl: 0.001, clip_fraction: 0, zero_variance_groups: 0, pictures: 96, ...more }))
const count = (n, f) => Array.from({ length: n }, (_, i) => f(i))
const look = (version, mean, more = {}) => ({ version, at: 0, series: "s", reward_mean: mean, reward_std: 0.1, rewards: [mean - 0.01, mean, mean + 0.01, mean], ...more })
const verdict = (events, looks) => {
    const { level, key } = healthOf(events, looks)
    return `${level} ${key}`
}
// The demo's own runs (README): placement reward of seed 0, its spread falls as nearly all shapes are in place.
const DEMO = [0.7014, 0.5979, 0.6361, 0.6809, 0.697, 0.7237, 0.7354, 0.6863, 0.7926, 0.8692, 0.9041, 0.8344, 0.8996, 0.9045, 0.8456, 0.9156, 0.9583, 0.915, 0.9072, 0.9782]
const DEMO_STD = [0.3611, 0.3739, 0.3614, 0.3523, 0.347, 0.3459, 0.348, 0.3546, 0.312, 0.2658, 0.2247, 0.2674, 0.2394, 0.2314, 0.2788, 0.201, 0.1536, 0.2159, 0.214, 0.1005]
const noise = [0.03, -0.02, 0.01, -0.03, 0.02, 0, -0.01, 0.02, -0.02, 0.01, 0.03, -0.03]

test("nothing and too little", () => {
    assert.equal(verdict([]), "waiting none")
    assert.equal(verdict(run([0.1, 0.5, 0.9, 1, 1.1])), "waiting tooFew")
    assert.notEqual(verdict(run(count(ENOUGH, (i) => i / 10))), "waiting tooFew")
})

test("rising, falling, flat, settled", () => {
    assert.equal(verdict(run(noise.map((n, i) => 0.5 + 0.02 * i + n))), "good rising")
    assert.equal(verdict(run(noise.map((n, i) => 0.8 - 0.02 * i + n))), "bad falling")
    assert.equal(verdict(run(noise.map((n) => 0.5 + n))), "look flat")
    const settled = [...count(20, (i) => 0.4 + 0.02 * i), ...count(20, (i) => 0.8 + noise[i % 12])]
    assert.equal(verdict(run(settled)), "good settled")
    assert.equal(verdict(run(count(PATIENCE - 1, () => 0.5))), "waiting flat")
    assert.equal(verdict(run(count(PATIENCE, () => 0.5))), "look flat")
})

test("the demo's real run is good all along", () => {
    const events = DEMO.map((reward_mean, i) => ({ ...run([reward_mean])[0], version: i + 1, reward_std: DEMO_STD[i] }))
    assert.equal(verdict(events), "good rising")
    assert.equal(verdict(events.slice(0, 12)), "good rising")
    const end = [...DEMO_STD.slice(0, 17), 0.05, 0.04, 0.07]
    assert.equal(verdict(events.map((event, i) => ({ ...event, reward_std: end[i] }))), "good littleLeft")
})

test("no spread is a problem at once; little spread without a better reward is worth a look", () => {
    assert.equal(verdict(run([0.5], { reward_std: NO_SPREAD / 2 })), "bad allAlike")
    assert.equal(verdict(run([0.5], { reward_std: NO_SPREAD * 2 })), "waiting tooFew")
    const fading = run(count(10, () => 0.5)).map((event, i) => ({ ...event, reward_std: i < 5 ? 0.3 : 0.01 }))
    assert.equal(verdict(fading), "look littleSpread")
})

test("held-out falls while training rises: maybe hacking, with the version to go back to", () => {
    const events = run(count(12, (i) => 0.5 + 0.03 * i))
    const looks = [look(3, 0.5), look(6, 0.7), look(9, 0.6), look(12, 0.5)]
    const health = healthOf(events, looks)
    assert.equal(health.key, "hacked")
    assert.equal(health.back, 6)
    assert.deepEqual(health.values, { before: 0.7, now: 0.5, version: 6 })
})

test("no hacking where held-out only wavers, is of another series, has few looks, or training falls too", () => {
    const events = run(count(12, (i) => 0.5 + 0.03 * i))
    const wavering = [look(3, 0.5), { ...look(6, 0.7), rewards: [0.9, 0.5, 0.8, 0.6] }, { ...look(12, 0.69), rewards: [0.5, 0.9, 0.6, 0.76] }]
    assert.equal(verdict(events, wavering), "good rising")
    assert.equal(verdict(events, [look(3, 0.9, { series: "other" }), look(6, 0.8, { series: "other" }), look(9, 0.5), look(12, 0.5)]), "good rising")
    assert.equal(verdict(events, [look(6, 0.7), look(12, 0.5)]), "good rising")
    assert.equal(verdict(run(noise.map((n, i) => 0.9 - 0.03 * i + n)), [look(3, 0.7), look(6, 0.6), look(12, 0.5)]), "bad falling")
    assert.equal(verdict(events, [look(3, 0.5), look(6, 0.7), look(12, 0.5, { reward_mean: null })]), "good rising")
})

test("one held-out picture must lose a tenth", () => {
    const events = run(count(12, (i) => 0.5 + 0.03 * i))
    const one = (version, mean) => look(version, mean, { rewards: [mean] })
    assert.equal(verdict(events, [one(3, 0.5), one(6, 0.7), one(12, 0.65)]), "good rising")
    assert.equal(verdict(events, [one(3, 0.5), one(6, 0.7), one(12, 0.6)]), "bad hacked")
})

test("KL, clipping, groups that teach nothing", () => {
    const rising = count(10, (i) => 0.5 + 0.03 * i)
    assert.equal(verdict(run(rising, { kl: FAR * 1.1 })), "look far")
    assert.equal(verdict(run(rising, { clip_fraction: MUCH_CLIPPED + 0.01 })), "look clipped")
    assert.equal(verdict(run(rising, { clip_fraction: MUCH_CLIPPED })), "good rising")
    assert.equal(verdict(run(rising, { zero_variance_groups: 17 })), "look flatGroups")
    assert.equal(verdict(run(rising, { zero_variance_groups: 5 })), "good rising")
    assert.equal(verdict(run(rising, { kl: undefined, clip_fraction: undefined, zero_variance_groups: undefined })), "good rising")
})

test("what came before the run went back does not count", () => {
    const events = [...run(count(10, (i) => 0.9 - 0.05 * i)), { version: 11, at: 0, back_to: 3 }, ...run([0.8, 0.81]).map((event, i) => ({ ...event, version: 12 + i }))]
    assert.equal(verdict(events), "waiting tooFew")
    assert.equal(verdict(events.slice(0, 11)), "waiting tooFew")
    assert.equal(verdict([...events, ...run(count(8, (i) => 0.8 + 0.02 * i)).map((event, i) => ({ ...event, version: 14 + i }))]), "good rising")
})

test("trend is the slope in standard errors", () => {
    assert.equal(trend([1, 2, 3, 4]), Infinity)
    assert.equal(trend([1, 1, 1]), 0)
    assert.ok(Math.abs(trend([1, 3, 2, 5]) - 2.117) < 1e-3) // slope 1.1, rest 2.7, error sqrt(2.7 / 2 / 5)
})
