// Keep queueing until a version: never more than one in flight, never past the end, and every reason to stop.
// @ts-nocheck: made-up runs, nodes and servers have only what is asked of them

import assert from "node:assert/strict"
import { test } from "node:test"
import { createClaims } from "../../web/js/runs/claim.js"
import { fateOf, inFlight, queueOne, takeOut } from "../../web/js/runs/prompts.js"
import { Queueing } from "../../web/js/runs/queue_loop.js"
import { given, nextStep, offered, seen } from "../../web/js/runs/queue_until.js"

const summary = (more = {}) => ({ name: "a", kind: "graph", version: 3, phase: "waiting", message: "", at: 0, waiting: 0, paused: false, going_back_to: null, reward: null, base: "", rejected: 0, dropped: 0, ...more })
const intent = (more = {}) => ({ run: "a", until: 6, prompt: null, given: 0, version: 3, dropped: 0, ...more })
const here = { trains: true, linked: false, fixedSeeds: [], pinned: [] }
const step = (ofIntent, ofRun, fate = null, workflow = here) => {
    const { act, key } = nextStep(intent(ofIntent), { summary: ofRun && summary(ofRun), fate, workflow })
    return key ? `${act} ${key}` : act
}
const ended = { state: "success" }

test("queue, wait for the prompt, queue again, end at the version", () => {
    assert.equal(step({}, {}), "queue")
    assert.equal(step({ prompt: "p" }, {}, { state: "waiting" }), "wait")
    assert.equal(step({ prompt: "p", given: 3 }, { version: 4 }, ended), "queue")
    assert.equal(step({ prompt: "p", given: 5 }, { version: 6 }, ended), "done")
    assert.equal(step({ prompt: "p", given: 5 }, { version: 6 }, { state: "waiting" }), "done")
})

test("what waits for the trainer counts, so that the end is not passed, and at most two wait", () => {
    assert.equal(step({ prompt: "p", given: 3, until: 4 }, { waiting: 1 }, ended), "wait")
    assert.equal(step({ prompt: "p", given: 3 }, { waiting: 1 }, ended), "queue")
    assert.equal(step({ prompt: "p", given: 4, until: 99 }, { waiting: 2 }, ended), "wait")
})

test("it waits while another workflow is open, or an older version is looked at", () => {
    assert.equal(step({}, {}, null, { ...here, trains: false }), "wait")
    assert.equal(step({ prompt: "p", given: 3 }, { version: 4 }, ended, { ...here, pinned: [2] }), "wait")
    assert.equal(step({}, { version: 6 }, null, { ...here, trains: false }), "done")
})

test("every reason to stop", () => {
    assert.equal(step({}, { paused: true }), "stop paused")
    assert.equal(step({ prompt: "p" }, { paused: true }, { state: "waiting" }), "stop paused")
    assert.equal(step({ prompt: "p" }, {}, { state: "error", message: "x" }), "stop failed")
    assert.equal(step({ prompt: "p" }, {}, { state: "cancelled" }), "stop cancelled")
    assert.equal(step({ prompt: "p", given: 3 }, {}, ended), "stop nothingNew")
    assert.equal(step({ prompt: "p", given: 4 }, { dropped: 2 }, ended), "stop dropped")
    assert.equal(step({ prompt: "p", given: 3 }, { dropped: 1 }, ended), "queue")
})

test("drops count from the last version that came", () => {
    assert.deepEqual(seen(intent(), summary({ version: 4, dropped: 5 })), intent({ version: 4, dropped: 5 }))
    assert.deepEqual(seen(intent(), summary({ dropped: 5 })), intent())
    assert.equal(given(summary({ version: 3, waiting: 1, rejected: 2, dropped: 4 })), 10)
    assert.equal(offered(3), 13)
})

/** A storage as a browser's. */
function storage() {
    const kept = new Map()
    return { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => void kept.set(key, value), removeItem: (key) => void kept.delete(key) }
}

test("a claim keeps other pages away until it is given back or old", async () => {
    let now = 0
    const shared = storage()
    const [one, two] = ["1", "2"].map((page) => createClaims(shared, page, () => now))
    assert.equal(await one.take("a", 9), true)
    assert.equal(await two.take("a", 9), false)
    assert.equal(await two.take("b", 9), true)
    assert.deepEqual([one.other("a"), two.other("a")?.until], [null, 9])
    two.release("a")
    assert.equal(one.isMine("a"), true)
    now = 91
    assert.equal(await two.take("a", 7), true)
    assert.equal(one.isMine("a"), false)
    two.release("a")
    assert.equal(await one.take("a", 9), true)
})

test("two pages that claim at once: one of them gets it", async () => {
    const shared = storage()
    const got = await Promise.all(["1", "2"].map((page) => createClaims(shared, page).take("a", 9)))
    assert.equal(got.filter(Boolean).length, 1)
})

/** A page whose prompts end by themselves, each with a new version. */
function page(more = {}) {
    const it = { run: summary(), queued: 0, flying: 0, most: 0, listeners: {}, fates: {}, shared: storage(), tab: storage(), foreign: null, ...more }
    it.wake = () => Object.values(it.listeners).forEach((listener) => listener({}))
    it.end = (fate = ended, versions = 1) => {
        it.flying--
        it.fates[`p${it.queued}`] = fate
        it.run = { ...it.run, version: it.run.version + versions }
        it.wake()
    }
    it.open = (name = "1") =>
        new Queueing({
            ask: async () => {
                if (it.broken) throw new Error("gone")
                return { summary: it.run }
            },
            onServer: (event, listener) => ((it.listeners[`${name} ${event}`] = listener), () => delete it.listeners[`${name} ${event}`]),
            workflow: () => here,
            queueOne: async () => ((it.most = Math.max(it.most, ++it.flying)), it.refuse ? null : `p${++it.queued}`),
            inFlight: async () => it.foreign,
            fateOf: async (id) => it.fates[id] ?? { state: "waiting" },
            storage: it.tab,
            clock: it.clock,
            claims: createClaims(it.shared, name),
        })
    return it
}
const settle = () => new Promise((done) => setTimeout(done, 120))

test("it queues one at a time, reaches exactly N, and leaves nothing behind", async () => {
    const far = page()
    const queueing = far.open()
    await queueing.start(far.run, 6)
    for (let i = 0; i < 3; i++) {
        await settle()
        for (let j = 0; j < 5; j++) far.wake()
        await settle()
        far.end()
    }
    await settle()
    assert.deepEqual([far.queued, far.most, far.run.version], [3, 1, 6])
    assert.equal(queueing.get().key, "done")
    assert.equal(queueing.get().values.until, 6)
    assert.deepEqual(Object.keys(far.listeners), [])
    assert.equal(far.tab.getItem("stepwise_grpo.intent"), null)
})

test("a failed prompt ends it and says why; a refused one too; a pause from anywhere too", async () => {
    for (const [spoil, key] of [[(far) => far.end({ state: "error", message: "no memory" }, 0), "failed"], [(far) => far.end({ state: "cancelled" }, 0), "cancelled"], [(far) => ((far.run.paused = true), far.wake()), "paused"]]) {
        const far = page()
        const queueing = far.open()
        await queueing.start(far.run, 6)
        await settle()
        spoil(far)
        await settle()
        assert.equal(queueing.get().key, key)
        assert.equal(far.queued, 1)
        if (key === "failed") assert.equal(queueing.get().values.why, "no memory")
    }
    const far = page({ refuse: true })
    const queueing = far.open()
    await queueing.start(far.run, 6)
    await settle()
    assert.equal(queueing.get().key, "refused")
})

test("after a reload it goes on with the prompt in flight; a second page does not begin", async () => {
    const far = page()
    const before = far.open("1")
    await before.start(far.run, 5)
    await settle()
    const second = far.open("2")
    await second.start(far.run, 5)
    assert.equal(second.get().key, "elsewhere")
    assert.equal(second.get().intent, null)
    far.tab.setItem("stepwise_grpo.intent", JSON.stringify(before.get().intent)) // here both pages have one storage; two tabs have two
    before.leave()
    far.broken = true // requests of a page that goes away fail
    far.wake()
    await settle()
    far.broken = false
    far.listeners = {}
    const after = far.open("3")
    await after.resume()
    await settle()
    assert.equal(far.queued, 1)
    far.end()
    await settle()
    far.end()
    await settle()
    assert.deepEqual([far.queued, far.run.version, after.get().key], [2, 5, "done"])
})

test("requests that fail for a moment end nothing and queue nothing; for long they end it", async () => {
    let now = 0
    const far = page({ clock: () => now })
    const queueing = far.open()
    far.broken = true
    await queueing.start(far.run, 6)
    await settle()
    assert.deepEqual([far.queued, queueing.get().intent?.run], [0, "a"])
    now = 14
    far.broken = false
    far.wake()
    await settle()
    assert.equal(far.queued, 1)
    far.broken = true
    far.wake()
    await settle()
    now = 30
    far.wake()
    await settle()
    assert.deepEqual([far.queued, queueing.get().key, queueing.get().values.why], [1, "failed", "gone"])
})

test("a page that the browser kept goes on when it is shown again", async () => {
    const far = page()
    const queueing = far.open()
    await queueing.start(far.run, 5)
    await settle()
    queueing.leave()
    far.end()
    await settle()
    assert.equal(far.queued, 1)
    await queueing.comeBack()
    await settle()
    assert.deepEqual([far.queued, queueing.get().intent.prompt], [2, "p2"])
    queueing.stop()
})

test("a prompt of the run that is queued already is waited for, not doubled", async () => {
    const far = page({ foreign: "other" })
    const queueing = far.open()
    await queueing.start(far.run, 5)
    await settle()
    assert.equal(far.queued, 0)
    assert.equal(queueing.get().intent.prompt, "other")
    far.foreign = null
    far.fates.other = ended
    far.wake()
    await settle()
    assert.equal(far.queued, 1)
    queueing.stop()
    assert.equal(queueing.get().intent, null)
})

const graph = (run) => ({ 1: { class_type: "StepwiseGRPO_GRPOLoRATrainer", inputs: { run_name: run } } })
const item = (id, run, page = "me", number = 1) => [number, id, graph(run), { client_id: page }, []]

/** ComfyUI's queue. */
function comfy({ running, pending, history } = {}) {
    const it = { running: running ?? [], pending: pending ?? [], history: history ?? {}, deleted: [] }
    it.ask = async (path, body) => {
        if (body?.delete) return void it.deleted.push(...body.delete)
        return path === "/queue" ? { queue_running: it.running, queue_pending: it.pending } : it.history
    }
    return it
}

test("what became of a prompt", async () => {
    const far = comfy({ running: [item("r", "a")], history: { ok: { status: { status_str: "success" } }, bad: { status: { status_str: "error", messages: [["execution_error", { exception_message: " no memory\n" }]] } }, cut: { status: { status_str: "error", messages: [["execution_interrupted", {}]] } } } })
    assert.deepEqual(await Promise.all(["r", "ok", "bad", "cut", "never"].map((id) => fateOf(far.ask, id))), [{ state: "waiting" }, { state: "success" }, { state: "error", message: "no memory" }, { state: "cancelled" }, { state: "cancelled" }])
})

test("the prompt just queued is found by page, in the queue or ended already", async () => {
    const far = comfy({ pending: [item("before", "a")] })
    assert.equal(await queueOne(far.ask, async () => far.pending.push(item("theirs", "a", "you", 9), item("mine", "a", "me", 8)), "me"), "mine")
    assert.equal(await queueOne(far.ask, async () => (far.history = { fast: { prompt: item("fast", "a", "me", 10) } }), "me"), "fast")
    assert.equal(await queueOne(far.ask, async () => {}, "me"), null)
})

test("a run's prompts are taken out of the queue, others stay; the running one only when asked", async () => {
    const far = comfy({ running: [item("r", "a")], pending: [item("p", "a"), item("q", "b"), [1, "x", { 1: { class_type: "KSampler", inputs: {} } }, {}, []]] })
    assert.equal(await inFlight(far.ask, "a"), "p")
    assert.equal(await inFlight(far.ask, "c"), null)
    const cut = []
    assert.equal(await takeOut(far.ask, "a"), 1)
    assert.equal(await takeOut(far.ask, "a", async (id) => void cut.push(id)), 1)
    assert.deepEqual([far.deleted, cut], [["p", "p"], ["r"]])
})
