// Does what queue_until.js says: one prompt in flight at most, awake on the server's messages, across a reload of the page.

import { given, nextStep, seen } from "./queue_until.js"
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
 * @property {() => number} [clock] s
 * @property {ReturnType<typeof import("./claim.js").createClaims>} claims
 */
/** @typedef {{intent: Intent | null, run: string, key: string, values: {[name: string]: string | number}}} Told - `key`: how it ended, "" while it goes on */

const KEY = "stepwise_grpo.intent"
const AWAKE = ["stepwise_grpo.runs", "status", "execution_success", "execution_error", "execution_interrupted", "reconnected"]
const LOOK_ANYWAY = 5000 // ms, in case a message was lost
const SILENT = 15 // s: requests fail while ComfyUI restarts, or while the page asks whether it may be left; longer is a failure

export class Queueing {
    /** @type {Told} */
    #told = { intent: null, run: "", key: "", values: {} }
    /** @type {Set<() => void>} */
    #listeners = new Set()
    /** @type {(() => void)[]} */
    #ends = []
    /** @type {number | null} since when no request was answered, s */
    #silentSince = null
    #leaving = false // requests fail while the page goes away; that ends nothing

    /** @param {Page} page */
    constructor(page) {
        this.page = page
        this.clock = page.clock ?? (() => performance.now() / 1000)
        this.look = single(() => this.#look())
    }

    get = () => this.#told

    /** @param {() => void} listener */
    subscribe(listener) {
        this.#listeners.add(listener)
        return () => void this.#listeners.delete(listener)
    }

    /** @param {import("./store.js").Summary} run @param {number} until */
    start(run, until) {
        return this.#begin({ run: run.name, until, prompt: null, given: 0, version: run.version, dropped: run.dropped })
    }

    /** Forget how queueing ended: something new begins. */
    clear() {
        if (!this.#told.intent) this.#set(null, { run: "", key: "" })
    }

    /** No further prompt; the one in flight goes on. */
    stop() {
        if (this.#told.intent) this.#finish("")
    }

    /** The page goes away: it goes on when it comes back, by a reload or by the browser's memory of it. */
    leave() {
        this.#leaving = true
        this.#sleep()
        if (this.#told.intent) this.page.claims.release(this.#told.intent.run)
    }

    async comeBack() {
        this.#leaving = false
        if (this.#told.intent) await this.#begin(this.#told.intent)
    }

    /** Go on after a reload, as this tab set out to. */
    async resume() {
        const kept = JSON.parse(this.page.storage.getItem(KEY) ?? "null")
        if (!kept || this.#told.intent) return
        await this.#begin(kept)
    }

    /** @param {Intent} intent */
    async #begin(intent) {
        this.#silentSince = null
        if (this.#told.intent && this.#told.intent !== intent) this.#finish("")
        if (!(await this.page.claims.take(intent.run, intent.until))) return this.#set(null, { run: intent.run, key: "elsewhere" })
        this.#sleep()
        const timer = setInterval(this.look, LOOK_ANYWAY)
        this.#ends = [...AWAKE.map((name) => this.page.onServer(name, this.look)), () => clearInterval(timer)]
        this.#set(intent, { run: intent.run })
        this.look()
    }

    async #look() {
        const intent = this.#told.intent
        if (!intent || this.#leaving) return
        try {
            if (!this.page.claims.isMine(intent.run)) return this.#finish("elsewhere")
            this.page.claims.renew(intent.run, intent.until)
            await this.#go(intent)
            this.#silentSince = null
        } catch (error) {
            this.#silentSince ??= this.clock()
            if (this.clock() - this.#silentSince >= SILENT && this.#told.intent && !this.#leaving) this.#finish("failed", { why: said(error) })
        }
    }

    /** @param {Intent} intent */
    async #go(intent) {
        const fate = intent.prompt ? await this.page.fateOf(intent.prompt) : null // asked before the run: what the prompt made is then on disk
        const workflow = this.page.workflow(intent.run)
        let summary = await this.#summaryOf(intent.run)
        let step = nextStep(intent, { summary, fate, workflow })
        if (step.key === "nothingNew") step = nextStep(intent, { summary: (summary = await this.#summaryOf(intent.run)), fate, workflow }) // a commit fell between two reads
        const other = step.act === "queue" ? await this.page.inFlight(intent.run) : null
        if (!this.#goesOn(intent)) return
        if (step.act === "stop" || step.act === "done") return this.#finish(step.key ?? "done", step.values)
        if (other) return this.#set({ ...seen(intent, summary), prompt: other, given: -1 })
        if (step.act === "queue") return this.#queue({ ...seen(intent, summary), prompt: null, given: given(summary) })
        if (seen(intent, summary) !== intent) this.#set(seen(intent, summary))
    }

    /** Whether what was begun with is still wanted. @param {Intent} intent */
    #goesOn(intent) {
        return this.#told.intent === intent && !this.#leaving
    }

    /** @param {string} run @returns {Promise<import("./store.js").Summary>} */
    async #summaryOf(run) {
        return (await this.page.ask(`/runs/${encodeURIComponent(run)}/summary`)).summary
    }

    /** @param {Intent} intent */
    async #queue(intent) {
        this.#set(intent)
        const id = await this.page.queueOne()
        if (!this.#goesOn(intent)) return
        if (id === null) this.#finish("refused")
        else this.#set({ ...intent, prompt: id })
    }

    #sleep() {
        this.#ends.forEach((end) => end())
        this.#ends = []
    }

    /** @param {string} key @param {{[name: string]: string | number}} [values] */
    #finish(key, values = {}) {
        const until = this.#told.intent?.until ?? 0
        if (this.#told.intent) this.page.claims.release(this.#told.intent.run)
        this.#sleep()
        this.#set(null, { key, values: { until, ...values } })
    }

    /** @param {Intent | null} intent @param {Partial<Told>} [more] */
    #set(intent, more = {}) {
        this.#told = { ...this.#told, key: "", values: {}, ...more, intent }
        if (intent) this.page.storage.setItem(KEY, JSON.stringify(intent))
        else this.page.storage.removeItem(KEY)
        for (const listener of this.#listeners) listener()
    }
}
