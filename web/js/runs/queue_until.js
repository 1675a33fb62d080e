// "Keep queueing until version N": what to do next. Data in, data out; queue_loop.js does it.

/** @typedef {import("./store.js").Summary} Summary */
/** @typedef {import("./prompts.js").Fate} Fate */
/**
 * @typedef {object} Intent what this tab set out to do
 * @property {string} run @property {number} until
 * @property {string | null} prompt the one in flight
 * @property {number} given what the run had been given when that was queued
 * @property {number} version @property {number} dropped at the last version that came
 */
/** @typedef {{summary: Summary, fate: Fate | null, workflow: Workflow}} Now */
/** @typedef {{trains: boolean, linked: boolean, fixedSeeds: string[], pinned: number[]}} Workflow what the open workflow says of the run */
/** @typedef {{act: "queue" | "wait" | "done" | "stop", key?: string, values?: {[name: string]: string | number}}} Step */

// An iteration made while two wait is older than two versions when its turn comes, and the trainer drops it then.
export const AHEAD = 2
// Two dropped without a new version between them: the next ones would be dropped too.
export const DROPS = 2

/** Everything the run was ever given, whatever became of it. @param {Summary} run */
export const given = (run) => run.version + run.waiting + run.rejected + run.dropped

/**
 * @param {Intent} intent @param {Now} now @returns {Step}
 */
export function nextStep(intent, { summary, fate, workflow }) {
    if (summary.paused) return stop("paused")
    if (fate?.state === "error") return stop("failed", { why: fate.message ?? "" })
    if (fate?.state === "cancelled") return stop("cancelled")
    if (summary.version >= intent.until) return { act: "done" }
    if (fate?.state === "waiting") return { act: "wait" }
    if (!workflow.trains || workflow.pinned.length) return { act: "wait" } // another workflow is looked at, or an older version: the panel says so
    if (fate && given(summary) <= intent.given) return stop("nothingNew")
    if (summary.dropped - intent.dropped >= DROPS) return stop("dropped")
    if (summary.waiting >= AHEAD || summary.version + summary.waiting >= intent.until) return { act: "wait" }
    return { act: "queue" }
}

/** @param {string} key @param {{[name: string]: string | number}} [values] @returns {Step} */
const stop = (key, values) => ({ act: "stop", key, values })

/**
 * The intent with what is known by now: drops count from the last version that came.
 * @param {Intent} intent @param {Summary} summary @returns {Intent}
 */
export const seen = (intent, summary) => (summary.version > intent.version ? { ...intent, version: summary.version, dropped: summary.dropped } : intent)

/** The version to offer as the end. @param {number} newest */
export const offered = (newest) => newest + 10
