// The runs, the newest activity first. A click opens one.

import { element } from "../draw/elements.js"
import { shown } from "../draw/scales.js"
import { t } from "../words.js"
import { ago, whenChanged } from "./parts.js"
import { nowOf } from "./trainer_box.js"

/** @typedef {import("./store.js").State} State */
/** @typedef {import("./store.js").Summary} Summary */

const MANY = 6 // from here on a field to search by name

/**
 * The state of a run: a word's key and how it is shown.
 * @param {Summary} run @param {boolean} trainerAlive
 */
export function stateOf(run, trainerAlive) {
    if (run.going_back_to !== null) return { key: "goingBack", level: "busy" }
    if (run.paused) return { key: "paused", level: "quiet" }
    if (run.phase === "loading" || run.phase === "training") return { key: run.phase, level: "busy" }
    if (run.kind === "headless") return { key: ["stopped", "done"].includes(run.phase) ? run.phase : "watched", level: "quiet" }
    if (run.waiting && !trainerAlive) return { key: "needsTrainer", level: "look" }
    return run.waiting ? { key: "queued", level: "busy" } : { key: "idle", level: "quiet" }
}

/** @param {import("./panel.js").Context} context */
export function runList({ store }) {
    const search = element("input", { class: "sg-input", type: "search", placeholder: t("runs.search"), "aria-label": t("runs.search"), input: () => filter() })
    const list = element("ul", { class: "sg-runs" })
    const root = element("section", { "aria-label": t("runs.list") }, search, list)
    /** @type {{run: Summary, item: HTMLElement, time: HTMLElement}[]} */
    let rows = []

    const draw = whenChanged((/** @type {{runs: Summary[], open: string | null, alive: boolean}} */ { runs, open, alive }) => {
        const focused = rows.find((row) => row.item.contains(document.activeElement))?.run.name
        rows = runs.map((run) => row(run, alive, run.name === open, () => void store.open(run.name)))
        list.replaceChildren(...rows.map(({ item }) => item))
        if (focused !== undefined) rows.find(({ run }) => run.name === focused)?.item.querySelector("button")?.focus({ preventScroll: true })
        search.hidden = runs.length <= MANY
        filter()
    })

    function filter() {
        const wanted = search.hidden ? "" : search.value.trim().toLowerCase()
        for (const { run, item } of rows) item.hidden = !run.name.toLowerCase().includes(wanted)
    }

    return {
        root,
        /** @param {State} state */
        update(state) {
            root.hidden = !state.runs.length
            draw({ runs: state.runs, open: state.open, alive: state.trainer?.alive ?? false })
            const now = nowOf(state)
            for (const { run, time } of rows) {
                const text = run.at ? ago(now - run.at) : ""
                if (time.textContent !== text) time.textContent = text
            }
        },
    }
}

/** @param {Summary} run @param {boolean} alive the trainer @param {boolean} open @param {() => void} click */
function row(run, alive, open, click) {
    const { key, level } = stateOf(run, alive)
    const time = element("span")
    const facts = [t("runs.versionOf", { n: run.version }), ...(run.reward === null ? [] : [t("runs.rewardOf", { value: shown(run.reward) })]), ...(run.waiting ? [t("runs.waitingOf", { n: run.waiting })] : [])]
    const head = element("span", { class: "sg-row" }, element("span", { class: "sg-name sg-grow", title: run.name }, run.name), element("span", { class: `sg-chip sg-${level}` }, t(`runs.state.${key}`)))
    const item = element("li", {}, element("button", { type: "button", class: "sg-run", "aria-current": open ? "true" : undefined, click }, head, element("span", { class: "sg-quiet" }, `${facts.join(" · ")} · `, time)))
    return { run, item, time }
}
