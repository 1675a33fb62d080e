// One version, opened: its picture, what is known of it, its note, and what can be done with it.

import { element } from "../draw/elements.js"
import { shown } from "../draw/scales.js"
import { t } from "../words.js"
import { NoteField } from "./notes.js"
import { askIn, button, copyable, whenChanged } from "./parts.js"
import { NEWEST } from "./pins.js"
import { pictureOf } from "./versions.js"

/** @typedef {import("./store.js").Version} Version */
/** @typedef {import("./store.js").Detail} Detail */

/** @param {import("./panel.js").Context} context @param {() => void} leave */
export function versionCard(context, leave) {
    const keydown = (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && leave()
    const [about, actions, noted] = [element("div"), element("div"), element("div")]
    const title = element("h4", { class: "sg-grow" })
    const close = button("pi-times", "", leave, { class: "sg-button sg-link", "aria-label": t("runs.close") })
    const root = element("div", { class: "sg-card", role: "group", hidden: true, keydown }, element("div", { class: "sg-row" }, title, close), about, actions, noted)
    /** @type {NoteField | null} */
    let note = null

    // Each part for itself: a version that arrives must not take the field away in which someone types.
    const drawNote = whenChanged((/** @type {{run: string, n: number} | null} */ of) => {
        note?.close()
        note = null
        if (!of) return
        const { run, n } = of
        note = new NoteField(t("runs.note.ofVersion", { n }), (text) => context.store.act(run, "notes", { version: n, text }))
        title.textContent = t("runs.versions.version", { n })
        root.setAttribute("aria-label", t("runs.versions.version", { n }))
        noted.replaceChildren(note.root)
    })
    const drawAbout = whenChanged((/** @type {{run: string, version: Version, heldOut: number | null}} */ { run, version, heldOut }) => {
        about.replaceChildren(...aboutVersion(context.address, run, version, heldOut))
    })
    const drawActions = whenChanged((/** @type {{run: string, n: number, canGoBack: boolean}} */ { run, n, canGoBack }) => {
        actions.replaceChildren(buttons(context, run, n, canGoBack ? () => askIn(actions, ...backQuestion(context, run, n)) : null))
    })

    return {
        root,
        /** @param {string} run @param {Detail} detail @param {Version | null} version */
        update(run, detail, version) {
            root.hidden = !version
            if (!version) return drawNote(null)
            const n = version.version
            const newest = detail.versions.at(-1)?.version ?? 0
            drawNote({ run, n })
            drawAbout({ run, version, heldOut: detail.looks.find((one) => one.version === n)?.reward_mean ?? null })
            drawActions({ run, n, canGoBack: n > 0 && n < newest })
            note?.update(detail.notes[String(n)] ?? "")
        },
        close: () => note?.close(),
    }
}

/** @param {import("./panel.js").Context} context @param {string} run @param {number} n @param {(() => void) | null} goBack */
function buttons(context, run, n, goBack) {
    const pin = button("pi-bookmark", t("runs.pin.pin"), () => context.pin(run, n))
    const unpin = button("pi-refresh", t("runs.pin.unpin"), () => context.pin(run, NEWEST))
    return element("div", { class: "sg-row sg-wrap" }, pin, unpin, goBack ? button("pi-undo", t("runs.back.here"), goBack) : null)
}

/** @param {(path: string) => string} address @param {string} run @param {Version} version @param {number | null} heldOut */
function aboutVersion(address, run, version, heldOut) {
    const place = pictureOf(run, version)
    const alt = t(version.look ? "runs.versions.look" : "runs.versions.bestOf", { n: version.version })
    const parts = [place ? element("img", { class: "sg-picture", src: address(place), alt }) : null, facts(version, heldOut), version.lora_name ? copyable(version.lora_name, t("runs.versions.lora")) : null]
    return parts.filter((part) => part !== null)
}

/** @param {Version} version @param {number | null} heldOut */
function facts(version, heldOut) {
    const lines = [
        version.version === 0 ? t("runs.versions.zero") : "",
        version.reward === null ? "" : t("runs.versions.learntFrom", { value: shown(version.reward) }),
        heldOut === null ? "" : t("runs.chart.heldOutOf", { value: shown(heldOut) }),
        version.at ? new Date(1000 * version.at).toLocaleString() : "",
        version.back_to === null ? "" : t("runs.chart.back", { x: version.version, to: version.back_to }),
        version.ema ? t("runs.versions.ema") : "",
    ]
    return element("p", {}, lines.filter(Boolean).join(" · "))
}

/**
 * What going back does, and whether it is wanted: what `question` takes.
 * @param {import("./panel.js").Context} context @param {string} run @param {number} version @returns {Parameters<typeof import("./parts.js").question>}
 */
export function backQuestion(context, run, version) {
    const newest = context.store.get().detail?.versions.at(-1)?.version ?? 0
    return [t("runs.back.question", { n: version, next: newest + 1 }), t("runs.back.yes"), context.guarded(() => context.store.act(run, "go_back", { version }))]
}
