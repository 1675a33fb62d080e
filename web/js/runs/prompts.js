// ComfyUI's queue as the sidebar needs it: what is in it of a run, what became of a prompt, one more prompt.

import { TRAINER } from "./workflow.js"

const PATIENCE = 10 // looks for a prompt just queued
const PAUSE = 200 // ms between them

/** @typedef {(path: string, body?: object) => Promise<any>} AskComfy */
/** @typedef {{id: string, number: number, page: string, running: boolean, runs: string[]}} Prompt */
/** @typedef {{state: "waiting" | "success" | "error" | "cancelled", message?: string}} Fate */

/** @param {AskComfy} ask @returns {Promise<Prompt[]>} */
export async function inQueue(ask) {
    const queue = await ask("/queue")
    return [...queue.queue_running.map((/** @type {any[]} */ item) => prompt(item, true)), ...queue.queue_pending.map((/** @type {any[]} */ item) => prompt(item, false))]
}

/** @param {any[]} item @param {boolean} running @returns {Prompt} */
function prompt([number, id, graph, more], running) {
    const trainers = Object.values(graph ?? {}).filter((node) => node.class_type === TRAINER)
    const runs = trainers.map((node) => node.inputs?.run_name).filter((name) => typeof name === "string")
    return { id, number, page: more?.client_id ?? "", running, runs: runs.map((name) => name.normalize("NFC")) }
}

/** The last prompt in the queue that trains a run. @param {AskComfy} ask @param {string} run */
export const inFlight = async (ask, run) => (await inQueue(ask)).findLast((one) => one.runs.includes(run))?.id ?? null

/** @param {AskComfy} ask @param {string} id @returns {Promise<Fate>} */
export async function fateOf(ask, id) {
    if ((await inQueue(ask)).some((prompt) => prompt.id === id)) return { state: "waiting" }
    const entry = (await ask(`/history/${encodeURIComponent(id)}`))?.[id]
    if (!entry) return { state: "cancelled" } // taken out of the queue before it began
    if (entry.status?.status_str === "success") return { state: "success" }
    const messages = new Map(entry.status?.messages ?? [])
    if (messages.has("execution_interrupted")) return { state: "cancelled" }
    return { state: "error", message: String(messages.get("execution_error")?.exception_message ?? "").trim() }
}

/**
 * Queue the open workflow once; the id of its prompt, or null where ComfyUI did not take it (the page then says why).
 * @param {AskComfy} ask @param {() => Promise<any>} press what the Run button does @param {string} page this page's name
 */
export async function queueOne(ask, press, page) {
    const before = new Set((await ours(ask, page)).map(([id]) => id))
    await press()
    for (let look = 0; look < PATIENCE; look++) {
        const fresh = (await ours(ask, page)).filter(([id]) => !before.has(id)).sort(([, a], [, b]) => b - a)
        if (fresh.length) return fresh[0][0]
        await new Promise((done) => setTimeout(done, PAUSE))
    }
    return null
}

/**
 * This page's prompts, queued and lately ended: [id, number].
 * @param {AskComfy} ask @param {string} page @returns {Promise<[string, number][]>}
 */
async function ours(ask, page) {
    const queued = await inQueue(ask)
    const ended = Object.values((await ask("/history?max_items=8")) ?? {}).map((entry) => prompt(entry.prompt, false))
    return [...queued, ...ended].filter((one) => one.page === page).map((one) => [one.id, one.number])
}

/**
 * Take a run's prompts out of the queue: those that have not begun, and with `interrupt` the running one too. How many there were.
 * @param {AskComfy} ask @param {string} run @param {(id: string) => Promise<void>} [interrupt]
 */
export async function takeOut(ask, run, interrupt) {
    const of = (await inQueue(ask)).filter((one) => one.runs.includes(run))
    const pending = of.filter((one) => !one.running).map((one) => one.id)
    if (pending.length) await ask("/queue", { delete: pending })
    for (const one of interrupt ? of.filter((other) => other.running) : []) await interrupt?.(one.id)
    return pending.length
}
