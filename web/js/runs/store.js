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
const MESSAGE = "stepwise_grpo.runs"

/**
 * @param {{ask: Ask, onServer: (name: string, listener: (data: any) => void) => (() => void), clock?: () => number}} server
 */
export function createStore({ ask, onServer, clock = () => Date.now() / 1000 }) {
    /** @type {State} */
    let state = { loaded: false, error: "", trainer: null, now: 0, heard: 0, runs: [], open: null, detail: null, detailError: "" }
    /** @type {Set<(state: State) => void>} */
    const listeners = new Set()
    /** @type {Map<string, number>} what was told of a run at which time of the server */
    const told = new Map()
    let whole = true
    let acts = 0 // begun and answered: what was asked for before one of them may be older than its answer

    /** @param {Partial<State>} change */
    function set(change) {
        state = { ...state, ...change }
        for (const listener of [...listeners]) listener(state)
    }

    /** @param {{trainer: Trainer, now: number, runs: Summary[]}} news @param {boolean} all these are all runs there are */
    function take(news, all) {
        const fresh = news.runs.filter((run) => news.now >= (told.get(run.name) ?? 0))
        for (const run of fresh) told.set(run.name, news.now)
        const late = news.now < state.now
        const runs = merged(all && !late ? state.runs.filter((run) => news.runs.some((other) => other.name === run.name)) : state.runs, fresh)
        const open = state.open ?? runs[0]?.name ?? null
        set({ loaded: state.loaded || all, runs, open, ...(all ? { error: "" } : {}), ...(late ? {} : { trainer: news.trainer, now: news.now, heard: clock() }) })
    }

    const refresh = single(async () => {
        try {
            take(await ask("/runs"), true)
        } catch (error) {
            set({ error: said(error) })
        }
        if (state.open && !state.detail) await more()
    })

    const more = single(async () => {
        const name = state.open
        if (name === null) return
        const known = whole ? null : state.detail
        const since = told.get(name)
        const actsBefore = acts
        const newest = known?.events.at(-1)?.version ?? 0
        whole = false
        try {
            const answer = await ask(`/runs/${encodeURIComponent(name)}${newest ? `?after=${newest}` : ""}`)
            if (state.open !== name) return
            if (answer.summary.version < newest) return void again() // begun anew
            const notes = acts === actsBefore ? answer.notes : state.detail?.notes ?? answer.notes
            set({ detail: { ...extended(known, answer), notes }, detailError: "" })
            if (told.get(name) === since) set({ runs: merged(state.runs, [answer.summary]) })
        } catch (error) {
            if (state.open === name) set({ detailError: said(error) })
        }
    })

    /** Ask for everything of the open run: what is known of it may be of another time. */
    function again() {
        whole = true
        return more()
    }

    /** @param {string} name */
    function open(name) {
        if (name === state.open) return Promise.resolve()
        set({ open: name, detail: null, detailError: "" })
        return again()
    }

    /**
     * Ask the server to do something for a run; refusals are thrown.
     * @param {string} name @param {"pause" | "resume" | "go_back" | "notes"} action @param {object} [body]
     */
    async function act(name, action, body = {}) {
        const since = told.get(name)
        acts++
        const answer = await ask(`/runs/${encodeURIComponent(name)}/${action}`, body).finally(() => acts++)
        if (told.get(name) === since) set({ runs: merged(state.runs, [answer.summary]) })
        if (state.open === name && state.detail) set({ detail: { ...state.detail, notes: answer.notes } })
    }

    async function stopTrainer() {
        set({ trainer: (await ask("/trainer/stop", {})).trainer })
    }

    /** @param {any} news */
    function hear(news) {
        take(news, false)
        if (news.gone?.length) forget(news.gone)
        if (news.runs.some((/** @type {Summary} */ run) => run.name === state.open)) more()
    }

    /** @param {string[]} gone names of runs whose folders are no more */
    function forget(gone) {
        const runs = state.runs.filter((run) => !gone.includes(run.name))
        set({ runs })
        if (state.open === null || !gone.includes(state.open)) return
        set({ open: runs[0]?.name ?? null, detail: null, detailError: "" })
        again()
    }

    /** Ask once, then listen; returns what ends the listening. */
    function start() {
        const ends = [onServer(MESSAGE, hear), onServer("reconnected", () => (again(), refresh()))]
        again()
        refresh()
        return () => ends.forEach((end) => end())
    }

    /** @param {(state: State) => void} listener */
    const subscribe = (listener) => {
        listeners.add(listener)
        return () => void listeners.delete(listener)
    }
    return { get: () => state, subscribe, start, refresh, open, act, stopTrainer }
}

/** @typedef {ReturnType<typeof createStore>} Store */

/**
 * `work`, one at a time: a wish that comes meanwhile is done once afterwards, however often it came.
 * @param {() => Promise<any>} work
 */
export function single(work) {
    /** @type {Promise<void> | null} */
    let running = null
    let wanted = false
    const run = async () => {
        while (wanted) {
            wanted = false
            await work()
        }
        running = null
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
