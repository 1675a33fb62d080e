// The sidebar: trainer, runs, and the open run. Lays out the boxes and tells them what has changed.

import { element } from "../draw/elements.js"
import { t } from "../words.js"
import { Charts } from "./charts.js"
import { controls } from "./controls.js"
import { healthBox } from "./health_box.js"
import { NoteField } from "./notes.js"
import { button } from "./parts.js"
import { runList, stateOf } from "./run_list.js"
import { trainerBox } from "./trainer_box.js"
import { VersionStrip } from "./versions.js"

/**
 * @typedef {object} Context what the boxes may use
 * @property {import("./store.js").Store} store @property {import("./queue_loop.js").Queueing} queueing @property {ReturnType<typeof import("./claim.js").createClaims>} claims
 * @property {(path: string) => string} address of one of our pictures
 * @property {(run: string) => import("./queue_until.js").Workflow & {nodes: number}} workflow what the open workflow says of a run
 * @property {(run: string, version: number) => void} pin @property {(run: string) => Promise<void>} pause @property {(run: string) => Promise<void>} resume
 * @property {(run: string) => Promise<void>} stop @property {() => void} openTemplate
 * @property {(act: () => Promise<any>) => () => void} guarded tells the artist when `act` fails
 */

/** @param {Context} context @param {HTMLElement} container @returns {() => void} what takes it away */
export function panel(context, container) {
    const { store, queueing } = context
    const parts = { trainer: trainerBox(context), runs: runList(context), open: openRun(context) }
    const trouble = element("p", { class: "sg-line sg-bad", role: "alert" })
    const retry = button("pi-refresh", t("runs.again"), () => void store.refresh())
    const first = newcomer(context)
    const root = element("div", { class: "sg-panel" }, parts.trainer.root, trouble, retry, first, parts.runs.root, parts.open.root)
    container.replaceChildren(root)

    function update() {
        const state = store.get()
        trouble.textContent = state.error || (state.open ? state.detailError : "")
        trouble.hidden = retry.hidden = !trouble.textContent
        first.hidden = !state.loaded || state.runs.length > 0
        parts.trainer.update(state)
        parts.runs.update(state)
        parts.open.update(state)
    }

    const ends = [store.subscribe(update), queueing.subscribe(update), store.start()]
    const ticking = setInterval(update, 1000) // times, claims of other pages, pins set on the canvas
    update()
    return () => {
        ends.forEach((end) => end())
        clearInterval(ticking)
        parts.open.close()
        root.remove()
    }
}

/** @param {Context} context */
function newcomer({ openTemplate }) {
    const steps = ["openTemplate", "startTrainer", "pressRun"].map((step) => element("li", {}, t(`runs.first.${step}`)))
    return element("section", { class: "sg-first", hidden: true }, element("h3", {}, t("runs.first.title")), element("p", {}, t("runs.first.what")), element("ol", {}, ...steps), button("pi-folder-open", t("runs.first.open"), openTemplate))
}

/** @param {Context} context */
function openRun(context) {
    const title = element("h2", { class: "sg-name sg-grow" })
    const chip = element("span", { class: "sg-chip" })
    const base = element("p", { class: "sg-quiet" })
    const strip = new VersionStrip(context)
    const boxes = { health: healthBox((version) => strip.select(version)), controls: controls(context), charts: new Charts() }
    const noted = element("section")
    const below = element("div", {}, boxes.charts.root, strip.root, noted)
    const root = element("div", { class: "sg-open" }, element("header", {}, element("div", { class: "sg-row" }, title, chip), base), boxes.health.root, boxes.controls.root, below)
    const note = noteOfRun(context, noted)
    /** @type {import("./store.js").Detail | null} */
    let drawn = null // a detail is never changed, only replaced

    return {
        root,
        /** @param {import("./store.js").State} state */
        update({ runs, open, detail, trainer }) {
            const summary = runs.find((run) => run.name === open) ?? detail?.summary
            root.hidden = !summary
            if (!summary) return
            const { key, level } = stateOf(summary, trainer?.alive ?? false)
            title.textContent = title.title = summary.name
            chip.textContent = t(`runs.state.${key}`)
            chip.className = `sg-chip sg-${level}`
            base.textContent = [summary.base, t(`runs.kind.${summary.kind}`)].filter(Boolean).join(" · ")
            boxes.controls.update(summary, trainer?.alive ?? false)
            below.hidden = boxes.health.root.hidden = !detail
            if (!detail || detail === drawn) return
            drawn = detail
            boxes.health.update(detail)
            boxes.charts.update(detail)
            strip.update(summary.name, detail)
            note.update(summary.name, detail.notes.run ?? "")
        },
        close() {
            boxes.charts.close()
            strip.close()
            note.close()
        },
    }
}

/**
 * The note on the open run: each run has a field of its own.
 * @param {Context} context @param {HTMLElement} root
 */
function noteOfRun({ store }, root) {
    /** @type {NoteField | null} */
    let field = null
    let run = ""
    return {
        /** @param {string} name @param {string} text */
        update(name, text) {
            if (name !== run || !field) {
                field?.close()
                run = name
                field = new NoteField(t("runs.note.ofRun"), (typed) => store.act(name, "notes", { version: null, text: typed }))
                root.replaceChildren(field.root)
            }
            field.update(text)
        },
        close: () => field?.close(),
    }
}
