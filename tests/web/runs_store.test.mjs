// The page's knowledge of the runs: one GET, then messages; late, lost and doubled answers.
// @ts-nocheck: made-up runs, nodes and servers have only what is asked of them

import assert from "node:assert/strict"
import { test } from "node:test"
import { Store } from "../../web/js/runs/store.js"

const summary = (name, version, more = {}) => ({ name, kind: "graph", version, phase: "waiting", message: "", at: version, waiting: 0, paused: false, going_back_to: null, reward: null, base: "Demo Model", rejected: 0, dropped: 0, ...more })
const event = (version) => ({ version, at: version, reward_mean: version / 10 })
const entry = (version, look = false) => ({ version, at: version, lora_name: `v${version}`, reward: null, picture: true, look, ema: false, back_to: null })
const trainer = { alive: true, host: "here", at: 1, stopping: false, command: "" }
const range = (first, last) => Array.from({ length: last - first + 1 }, (_, i) => first + i)

/** A server with runs by name and version; answers wait for `release` when `held`. */
function server(runs) {
    const asked = []
    const listeners = {}
    const waiting = []
    const it = { runs, asked, looks: [], notes: {}, now: 1, held: false, broken: "", release: () => waiting.splice(0).forEach((go) => go()) }
    const detail = (name, after) => ({ summary: summary(name, it.runs[name]), job: null, events: range(after + 1, it.runs[name]).map(event), versions: range(after + 1, it.runs[name]).map((v) => entry(v)), looks: it.looks, notes: it.notes, findings: null })
    it.ask = async (path, body) => {
        asked.push(path)
        if (it.broken) throw new Error(it.broken)
        const [, run, after] = path.match(/^\/runs\/([^?/]+)(?:\?after=(\d+))?$/) ?? []
        const action = path.match(/^\/runs\/([^/]+)\/notes$/)
        if (action) it.notes = { ...it.notes, [body.version ?? "run"]: body.text }
        const answer = action ? { summary: summary(action[1], it.runs[action[1]]), notes: it.notes } : run ? detail(decodeURIComponent(run), Number(after ?? 0)) : { trainer, now: it.now, runs: Object.entries(it.runs).map(([name, version]) => summary(name, version)) }
        if (it.held) await new Promise((go) => waiting.push(go))
        return structuredClone(answer)
    }
    it.onServer = (name, listener) => ((listeners[name] = listener), () => delete listeners[name])
    it.say = (name, version, more = {}, gone = []) => {
        it.runs[name] = version
        listeners["stepwise_grpo.runs"]?.({ trainer, now: ++it.now, runs: [summary(name, version, more)], gone })
    }
    it.reconnect = () => listeners.reconnected?.()
    it.listens = () => Object.keys(listeners).length
    return it
}
const settle = () => new Promise((done) => setTimeout(done, 5))
const versionsOf = (store) => store.get().detail.events.map((one) => one.version)

async function opened(runs) {
    const far = server(runs)
    const store = new Store({ ...far, clock: () => 0 })
    const end = store.start()
    await settle()
    return { far, store, end }
}

test("asked once, the newest run is open and its versions are there", async () => {
    const { store, far } = await opened({ old: 2, new: 3 })
    assert.equal(store.get().open, "new")
    assert.deepEqual(versionsOf(store), [1, 2, 3])
    assert.deepEqual(far.asked, ["/runs", "/runs/new"])
})

test("a message about the open run asks for what is new only", async () => {
    const { store, far } = await opened({ a: 3 })
    far.say("a", 5)
    await settle()
    assert.deepEqual(versionsOf(store), [1, 2, 3, 4, 5])
    assert.equal(far.asked.at(-1), "/runs/a?after=3")
    assert.equal(store.get().runs[0].version, 5)
})

test("a message about another run asks for nothing, and changes the list", async () => {
    const { store, far } = await opened({ a: 3 })
    const before = far.asked.length
    far.say("b", 9)
    await settle()
    assert.equal(far.asked.length, before)
    assert.deepEqual(store.get().runs.map((run) => run.name), ["b", "a"])
    assert.equal(store.get().open, "a")
})

test("messages while an answer is awaited lead to one more request, not to many", async () => {
    const { store, far } = await opened({ a: 1 })
    far.held = true
    const before = far.asked.length
    far.say("a", 2)
    await settle()
    for (let version = 3; version <= 9; version++) far.say("a", version)
    await settle()
    assert.equal(far.asked.length, before + 1)
    far.held = false
    far.release()
    await settle()
    assert.equal(far.asked.length, before + 2)
    assert.deepEqual(versionsOf(store), range(1, 9))
})

test("the late answer about a run that is no longer open is thrown away", async () => {
    const { store, far } = await opened({ a: 3, b: 1 })
    far.held = true
    store.open("b")
    await settle()
    store.open("a")
    far.held = false
    far.release()
    await settle()
    assert.equal(store.get().open, "a")
    assert.equal(store.get().detail.summary.name, "a")
    assert.deepEqual(versionsOf(store), [1, 2, 3])
})

test("an older message or answer does not overwrite a newer one", async () => {
    const { store, far } = await opened({ a: 3 })
    far.held = true
    const late = store.refresh()
    await settle()
    far.say("a", 4)
    far.held = false
    far.release()
    await late
    await settle()
    assert.equal(store.get().runs[0].version, 4)
    assert.equal(store.get().now, far.now)
})

test("a run begun anew under the same name is asked for as a whole", async () => {
    const { store, far } = await opened({ a: 5 })
    far.say("a", 1)
    await settle()
    assert.deepEqual(versionsOf(store), [1])
})

test("after a reconnect everything is asked for again", async () => {
    const { store, far } = await opened({ a: 2 })
    far.runs.a = 4
    far.now++
    far.reconnect()
    await settle()
    assert.ok(far.asked.slice(2).includes("/runs/a") && far.asked.slice(2).includes("/runs"))
    assert.deepEqual(versionsOf(store), [1, 2, 3, 4])
})

test("a look that comes later marks a version that is known already", async () => {
    const { store, far } = await opened({ a: 3 })
    far.looks = [{ version: 2, series: "s", reward_mean: 0.5, rewards: null, reward_std: null }]
    far.say("a", 3)
    await settle()
    assert.deepEqual(store.get().detail.versions.map((one) => one.look), [false, true, false])
    assert.equal(store.get().detail.looks.length, 1)
})

test("a note is there at once, and an answer asked for before it does not take it back", async () => {
    const { store, far } = await opened({ a: 1 })
    far.held = true
    far.say("a", 2)
    await settle()
    far.held = false
    await store.act("a", "notes", { version: null, text: "good" })
    far.release()
    await settle()
    assert.deepEqual(store.get().detail.notes, { run: "good" })
})

test("a refusal is told in the server's words and gone when an answer comes", async () => {
    const far = server({ a: 1 })
    far.broken = "no"
    const store = new Store(far)
    store.start()
    await settle()
    assert.equal(store.get().error, "no")
    assert.equal(store.get().loaded, false)
    far.broken = ""
    await store.refresh()
    assert.equal(store.get().error, "")
    assert.equal(store.get().detail.events.length, 1)
})

test("a run that is gone leaves the list, and none is opened in its place", async () => {
    const { store, far } = await opened({ a: 1, b: 2 })
    far.say("a", 1, {}, ["b"])
    await settle()
    assert.deepEqual(store.get().runs.map((run) => run.name), ["a"])
    assert.deepEqual([store.get().open, store.get().detail], [null, null])
    far.say("a", 2)
    await settle()
    assert.equal(store.get().open, null)
})

test("ended, it listens no more", async () => {
    const { far, end } = await opened({ a: 1 })
    assert.equal(far.listens(), 2)
    end()
    assert.equal(far.listens(), 0)
})

test("names go into addresses as one part", async () => {
    const { far } = await opened({ "a b+c é": 1 })
    assert.ok(far.asked.includes(`/runs/${encodeURIComponent("a b+c é")}`))
})
