// Does what queue_until.js says: one prompt in flight at most, awake on the server's messages, across a reload of the page.

import { made, nextStep, seen } from "./queue_until.js"
import { said, single } from "./store.js"

/** @typedef {import("./queue_until.js").Intent} Intent */
/** @typedef {import("./queue_until.js").Workflow} Workflow */
/**
 * @typedef {object} Page
 * @property {import("./store.js").Ask} ask our routes
 * @property {(name: string, listener: (data: any) => void) => (() => void)} onServer
 * @property {(run: string) => Workflow} workflow
 * @property {() => Promise<string | null>} queueOne
 * @property {(run: string) => Promise<string | null>} inFlight a prompt in the queue that trains the run: of a batch, of another page, of before a reload
 * @property {(id: string) => Promise<import("./prompts.js").Fate>} fateOf
 * @property {Storage} storage of this tab
 * @property {ReturnType<typeof import("./claim.js").createClaims>} claims
 */
/** @typedef {{intent: Intent | null, run: string, key: string, values: {[name: string]: string | number}}} Told - `key`: how it ended, "" while it goes on */

const KEY = "stepwise_grpo.intent"
const AWAKE = ["stepwise_grpo.runs", "status", "execution_success", "execution_error", "execution_interrupted", "reconnected"]
const LOOK_ANYWAY = 5000 // ms, in case a message was lost
const GRACE = 10 // s after a reload until the page has opened its workflow again
const NOTHING_AFTER = 999999999 // a version: the answer then holds no events

/** @param {Page} page */
export function createQueueing(page) {
    const { storage, claims } = page
    /** @type {Told} */
    let told = { intent: null, run: "", key: "", values: {} }
    /** @type {Set<() => void>} */
    const listeners = new Set()
    /** @type {(() => void)[]} */
    let ends = []
    let resumedAt = -Infinity // s
    let leaving = false // requests fail while the page goes away; that ends nothing

    /** @param {Intent | null} intent @param {Partial<Told>} [more] */
    function set(intent, more = {}) {
        told = { ...told, key: "", values: {}, ...more, intent }
        if (intent) storage.setItem(KEY, JSON.stringify(intent))
        else storage.removeItem(KEY)
        for (const listener of listeners) listener()
    }

    const look = single(async () => {
        const intent = told.intent
        if (!intent || leaving) return
        if (!claims.isMine(intent.run)) return finish("elsewhere")
        claims.renew(intent.run, intent.until)
        try {
            await go(intent)
        } catch (error) {
            if (told.intent === intent && !leaving) finish("failed", { why: said(error) })
        }
    })

    /** @param {Intent} intent */
    async function go(intent) {
        const fate = intent.prompt ? await page.fateOf(intent.prompt) : null // asked before the run: what the prompt made is then on disk
        const workflow = page.workflow(intent.run)
        let summary = await summaryOf(intent.run)
        let step = nextStep(intent, { summary, fate, workflow })
        if (step.key === "nothingNew") step = nextStep(intent, { summary: (summary = await summaryOf(intent.run)), fate, workflow }) // a commit fell between two reads
        if (["noNode", "linked"].includes(step.key ?? "") && performance.now() / 1000 - resumedAt < GRACE) step = { act: "wait" }
        const other = step.act === "queue" ? await page.inFlight(intent.run) : null
        if (told.intent !== intent || leaving) return
        if (step.act === "stop" || step.act === "done") return finish(step.key ?? "done", step.values)
        if (other) return set({ ...seen(intent, summary), prompt: other, made: -1 })
        if (step.act === "queue") return queue({ ...seen(intent, summary), prompt: null, made: made(summary) })
        if (seen(intent, summary) !== intent) set(seen(intent, summary))
    }

    /** @param {string} run @returns {Promise<import("./store.js").Summary>} */
    const summaryOf = async (run) => (await page.ask(`/runs/${encodeURIComponent(run)}?after=${NOTHING_AFTER}`)).summary

    /** @param {Intent} intent */
    async function queue(intent) {
        set(intent)
        const id = await page.queueOne()
        if (told.intent !== intent || leaving) return
        if (id === null) finish("refused")
        else set({ ...intent, prompt: id })
    }

    function sleep() {
        ends.forEach((end) => end())
        ends = []
    }

    /** @param {string} key @param {{[name: string]: string | number}} [values] */
    function finish(key, values = {}) {
        if (told.intent) claims.release(told.intent.run)
        sleep()
        set(null, { key, values: { until: told.intent?.until ?? 0, ...values } })
    }

    /** @param {Intent} intent */
    async function begin(intent) {
        if (told.intent && told.intent !== intent) finish("")
        sleep()
        if (!(await claims.take(intent.run, intent.until))) return set(null, { run: intent.run, key: "elsewhere", values: {} })
        const timer = setInterval(look, LOOK_ANYWAY)
        ends = [...AWAKE.map((name) => page.onServer(name, look)), () => clearInterval(timer)]
        set(intent, { run: intent.run })
        look()
    }

    return {
        get: () => told,
        /** @param {import("./store.js").Summary} run @param {number} until */
        start: (run, until) => begin({ run: run.name, until, prompt: null, made: 0, version: run.version, dropped: run.dropped }),
        /** No further prompt; the one in flight goes on. */
        stop: () => told.intent && finish(""),
        /** The page goes away: it goes on when it comes back, by a reload or by the browser's memory of it. */
        leave() {
            leaving = true
            sleep()
            if (told.intent) claims.release(told.intent.run)
        },
        async comeBack() {
            leaving = false
            if (told.intent) await begin(told.intent)
        },
        /** Go on after a reload, as this tab set out to. */
        async resume() {
            const kept = JSON.parse(storage.getItem(KEY) ?? "null")
            if (!kept || told.intent) return
            resumedAt = performance.now() / 1000
            await begin(kept)
        },
        /** @param {() => void} listener */
        subscribe: (listener) => (listeners.add(listener), () => void listeners.delete(listener)),
    }
}

/** @typedef {ReturnType<typeof createQueueing>} Queueing */
