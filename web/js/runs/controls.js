// Start, pause and stop of the open run, and what is going on with it.

import { element } from "../draw/elements.js"
import { t } from "../words.js"
import { button, whenChanged } from "./parts.js"
import { NEWEST } from "./pins.js"
import { offered } from "./queue_until.js"

/** @typedef {import("./store.js").Summary} Summary */
/** @typedef {{summary: Summary, workflow: import("./queue_until.js").Workflow & {nodes: number}, told: import("./queue_loop.js").Told, other: import("./claim.js").Claim | null, alive: boolean}} Now */

/** @param {import("./panel.js").Context} context */
export function controls(context) {
    const { queueing, guarded } = context
    const until = element("input", { class: "sg-input sg-number", type: "number", min: 1, max: 999999, step: 1, "aria-label": t("runs.until") })
    /** @type {Summary | null} */
    let run = null
    let offeredFor = ""

    const start = button("pi-play", t("runs.start"), guarded(async () => run && startUntil(context, run, Math.floor(Number(until.value)))), { class: "sg-button sg-main" })
    const pause = button("pi-pause", t("runs.pause"), guarded(async () => run && context.pause(run.name)))
    const stop = button("pi-stop", t("runs.stop"), guarded(async () => run && context.stop(run.name)), { title: t("runs.stopHelp") })
    const keep = element("label", { class: "sg-row sg-keep" }, element("span", {}, t("runs.until")), until)
    const steer = element("div", {}, element("div", { class: "sg-row sg-wrap" }, start, pause, stop), keep)
    const lines = element("div", { class: "sg-lines", "aria-live": "polite" })
    const root = element("section", { "aria-label": t("runs.controls") }, steer, lines)

    const draw = whenChanged((/** @type {Now} */ now) => {
        const { summary, told } = now
        const active = told.intent?.run === summary.name
        steer.hidden = summary.kind === "headless"
        start.lastChild?.replaceWith(t(summary.paused ? "runs.resume" : "runs.start"))
        start.disabled = active || now.other !== null
        pause.disabled = summary.paused
        lines.replaceChildren(...linesOf(context, now).map(({ level, text, act }) => element("p", { class: `sg-line sg-${level}` }, text, act ?? null)))
    })

    return {
        root,
        /** @param {Summary} summary @param {boolean} alive */
        update(summary, alive) {
            run = summary
            const { intent } = queueing.get()
            const active = intent?.run === summary.name ? intent : null
            const reached = !(Number(until.value) > summary.version) && document.activeElement !== until
            if (active) until.value = String(active.until)
            else if (offeredFor !== summary.name || reached) until.value = String(offered(summary.version))
            until.disabled = active !== null
            offeredFor = summary.name
            draw({ summary, alive, workflow: context.workflow(summary.name), told: queueing.get(), other: context.claims.other(summary.name) })
        },
    }
}

/**
 * Resume the run and, where the open workflow trains it, keep queueing.
 * @param {import("./panel.js").Context} context @param {Summary} run @param {number} until
 */
async function startUntil(context, run, until) {
    if (!(until > run.version)) throw new Error(t("runs.queue.untilTooLow", { version: run.version }))
    context.queueing.clear()
    await context.resume(run.name)
    if (context.workflow(run.name).trains) await context.queueing.start(run, until)
}

/**
 * The lines, with what can be done about them.
 * @param {import("./panel.js").Context} context @param {Now} now
 */
function linesOf({ pin, guarded, store }, now) {
    const { name } = now.summary
    const link = { class: "sg-button sg-link" }
    /** @type {{[key: string]: () => HTMLElement}} */
    const acts = {
        pinned: () => button("", t("runs.pin.unpin"), () => pin(name, NEWEST), link),
        goingBack: () => button("", t("runs.back.takeBack"), guarded(() => store.act(name, "go_back", { version: null })), link),
    }
    return messages(now).map((line) => ({ ...line, act: acts[line.key]?.() }))
}

/**
 * What is going on, in plain lines, the most urgent first.
 * @param {Now} now @returns {{level: string, text: string, key: string}[]}
 */
export function messages({ summary, workflow, told, other, alive }) {
    /** @type {{level: string, text: string, key: string}[]} */
    const found = []
    /** @param {string} key @param {string} level @param {string} text */
    const add = (key, level, text) => found.push({ key, level, text })
    if (summary.kind === "headless") add("headless", "quiet", t("runs.headless"))
    if (summary.going_back_to !== null) add("goingBack", "look", t(alive ? "runs.back.asked" : "runs.back.askedLater", { n: summary.going_back_to }))
    if (summary.paused) add("paused", "quiet", t(["loading", "training"].includes(summary.phase) ? "runs.pausing" : "runs.paused"))
    if (told.intent?.run === summary.name) add("queueing", "quiet", t("runs.queue.going", { version: summary.version, until: told.intent.until }))
    else if (other) add("other", "quiet", t("runs.queue.other", { until: other.until }))
    else if (told.run === summary.name && told.key) add("ended", ["done", "paused"].includes(told.key) ? "quiet" : "look", t(`runs.queue.${told.key}`, told.values))
    if (summary.kind === "graph" && !workflow.trains) add("notHere", "quiet", t(workflow.linked ? "runs.queue.linked" : "runs.queue.notHere"))
    if (workflow.pinned.length) add("pinned", "look", t("runs.pin.note", { versions: workflow.pinned.join(", ") }))
    for (const node of workflow.trains ? workflow.fixedSeeds : []) add("seed", "look", t("runs.queue.fixedSeed", { node }))
    if (summary.message) add("message", "quiet", summary.message)
    if (summary.rejected) add("rejected", "look", t("runs.rejected", { n: summary.rejected }))
    return found
}
