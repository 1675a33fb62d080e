// What the server knows of the runs, as this page knows it: asked once, then kept up by the server's messages.

/**
 * @typedef {object} Summary
 * @property {string} name @property {"graph" | "headless"} kind @property {number} version @property {string} phase @property {string} message
 * @property {number} at @property {number} waiting @property {boolean} paused @property {number | null} going_back_to
 * @property {number | null} reward @property {string} base @property {number} rejected @property {number} dropped
 */
/** @typedef {{alive: boolean, host: string | null, at: number | null, stopping: boolean, command: string}} Trainer */
/** @typedef {{version: number, at: number, back_to?: number | null, [metric: string]: any}} RunEvent */
/** @typedef {{version: number, at: number, lora_name: string, reward: number | null, picture: boolean, look: boolean, ema: boolean, back_to: number | null}} Version */
/** @typedef {{version: number, series: string, rewards: (number | null)[] | null, reward_mean: number | null, reward_std: number | null, [more: string]: any}} Look */
/** @typedef {{[of: string]: string}} Notes */
/** @typedef {{name: string, passed: boolean | null, [more: string]: any}} Finding */
/** @typedef {{summary: Summary, job: any, events: RunEvent[], versions: Version[], looks: Look[], notes: Notes, findings: Finding[] | null}} Detail */
/**
 * @typedef {object} State
 * @property {boolean} loaded the runs were answered once
 * @property {string} error why they were not
 * @property {Trainer | null} trainer
 * @property {number} now the server's clock, s since 1970, when it last told something
 * @property {number} heard this page's clock at that moment
 * @property {Summary[]} runs the newest activity first
 * @property {string | null} open name of the open run
 * @property {Detail | null} detail of the open run
 * @property {string} detailError
 */
/** @typedef {(path: string, body?: object) => Promise<any>} Ask */

const AT_MOST = 1000 // events of a run, as the server answers
export const MESSAGE = "stepwise_grpo.runs"

/** @typedef {(name: string, listener: (data: any) => void) => (() => void)} OnServer */

export class Store {
    /** @type {State} */
    #state = { loaded: false, error: "", trainer: null, now: 0, heard: 0, runs: [], open: null, detail: null, detailError: "" }
    /** @type {Set<(state: State) => void>} */
    #listeners = new Set()
    /** @type {Map<string, number>} what was told of a run at which time of the server */
    #told = new Map()
    #whole = true
    #acts = 0 // begun and answered: what was asked for before one of them may be older than its answer

    /** @param {{ask: Ask, onServer: OnServer, clock?: () => number}} server */
    constructor({ ask, onServer, clock = () => Date.now() / 1000 }) {
        this.ask = ask
        this.onServer = onServer
        this.clock = clock
        this.refresh = single(() => this.#refresh())
        this.more = single(() => this.#more())
    }

    get = () => this.#state

    /** Ask once, then listen; returns what ends the listening. */
    start() {
        const ends = [this.onServer(MESSAGE, (news) => this.#hear(news)), this.onServer("reconnected", () => this.#anew())]
        this.#again()
        this.refresh()
        return () => ends.forEach((end) => end())
    }

    /** @param {(state: State) => void} listener */
    subscribe(listener) {
        this.#listeners.add(listener)
        return () => void this.#listeners.delete(listener)
    }

    /** @param {string} name */
    open(name) {
        if (name === this.#state.open) return Promise.resolve()
        this.#set({ open: name, detail: null, detailError: "" })
        return this.#again()
    }

    /**
     * Ask the server to do something for a run; refusals are thrown.
     * @param {string} name @param {"pause" | "resume" | "go_back" | "notes"} action @param {object} [body]
     */
    async act(name, action, body = {}) {
        const since = this.#told.get(name)
        this.#acts++
        const answer = await this.ask(`/runs/${encodeURIComponent(name)}/${action}`, body).finally(() => this.#acts++)
        if (this.#told.get(name) === since) this.#set({ runs: merged(this.#state.runs, [answer.summary]) })
        const { open, detail } = this.#state
        if (open === name && detail) this.#set({ detail: { ...detail, notes: answer.notes } })
    }

    async stopTrainer() {
        this.#set({ trainer: (await this.ask("/trainer/stop", {})).trainer })
    }

    /** @param {Partial<State>} change */
    #set(change) {
        this.#state = { ...this.#state, ...change }
        for (const listener of [...this.#listeners]) listener(this.#state)
    }

    /** @param {{trainer: Trainer, now: number, runs: Summary[]}} news @param {boolean} all these are all runs there are */
    #take(news, all) {
        const before = this.#state
        const fresh = news.runs.filter((run) => news.now >= (this.#told.get(run.name) ?? 0))
        for (const run of fresh) this.#told.set(run.name, news.now)
        const late = news.now < before.now
        const runs = merged(all && !late ? before.runs.filter((run) => news.runs.some((other) => other.name === run.name)) : before.runs, fresh)
        const open = before.open ?? (before.runs.length ? null : (runs[0]?.name ?? null)) // the first to come; in place of a run that is gone the artist chooses
        this.#set({ loaded: before.loaded || all, runs, open, ...(all ? { error: "" } : {}), ...(late ? {} : { trainer: news.trainer, now: news.now, heard: this.clock() }) })
    }

    async #refresh() {
        try {
            this.#take(await this.ask("/runs"), true)
        } catch (error) {
            this.#set({ error: said(error) })
        }
        if (this.#state.open && !this.#state.detail) await this.more()
    }

    async #more() {
        const name = this.#state.open
        if (name === null) return
        const whole = this.#whole
        const known = whole ? null : this.#state.detail
        const [since, actsBefore, newest] = [this.#told.get(name), this.#acts, known?.events.at(-1)?.version ?? 0]
        this.#whole = false
        try {
            const answer = await this.ask(`/runs/${encodeURIComponent(name)}${newest ? `?after=${newest}` : ""}`)
            if (this.#state.open !== name) return
            if (answer.summary.version < newest) return void this.#again() // begun anew
            const notes = this.#acts === actsBefore ? answer.notes : (this.#state.detail?.notes ?? answer.notes)
            this.#set({ detail: { ...extended(known, answer), notes }, detailError: "" })
            if (this.#told.get(name) === since) this.#set({ runs: merged(this.#state.runs, [answer.summary]) })
        } catch (error) {
            this.#whole ||= whole
            if (this.#state.open === name) this.#set({ detailError: said(error) })
        }
    }

    /** Ask for everything of the open run: what is known of it may be of another time. */
    #again() {
        this.#whole = true
        return this.more()
    }

    /** After the connection was lost, perhaps to a server whose clock is another. */
    #anew() {
        this.#told.clear()
        this.#set({ now: 0 })
        this.#again()
        this.refresh()
    }

    /** @param {any} news */
    #hear(news) {
        this.#take(news, false)
        if (news.gone?.length) this.#forget(news.gone)
        if (news.runs.some((/** @type {Summary} */ run) => run.name === this.#state.open)) this.more()
    }

    /** @param {string[]} gone names of runs whose folders are no more */
    #forget(gone) {
        const runs = this.#state.runs.filter((run) => !gone.includes(run.name))
        const { open } = this.#state
        this.#set(open !== null && gone.includes(open) ? { runs, open: null, detail: null, detailError: "" } : { runs })
    }
}

/**
 * `work`, one at a time: a wish that comes meanwhile is done once afterwards, however often it came.
 * @param {() => Promise<any>} work
 */
export function single(work) {
    /** @type {Promise<void> | null} */
    let running = null
    let wanted = false
    const run = async () => {
        try {
            while (wanted) {
                wanted = false
                await work()
            }
        } finally {
            running = null
        }
    }
    return () => {
        wanted = true
        running ??= Promise.resolve().then(run)
        return running
    }
}

/** @param {unknown} error */
export const said = (error) => (error instanceof Error ? error.message : String(error))

/** @param {Summary[]} known @param {Summary[]} fresh @returns {Summary[]} */
function merged(known, fresh) {
    const byName = new Map([...known, ...fresh].map((run) => [run.name, run]))
    return [...byName.values()].sort((a, b) => b.at - a.at || (a.name < b.name ? -1 : 1))
}

/** @param {Detail | null} known @param {Detail} answer @returns {Detail} */
function extended(known, answer) {
    /** @template {{version: number}} T @param {T[]} old @param {T[]} fresh @returns {T[]} */
    const together = (old, fresh) => [...new Map([...old, ...fresh].map((entry) => [entry.version, entry])).values()].slice(-AT_MOST)
    const looked = new Set(answer.looks.map((look) => look.version))
    const versions = together(known?.versions ?? [], answer.versions).map((entry) => (entry.look === looked.has(entry.version) ? entry : { ...entry, look: looked.has(entry.version) }))
    return { ...answer, events: together(known?.events ?? [], answer.events), versions }
}
