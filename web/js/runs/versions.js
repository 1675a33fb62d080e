// The strip of versions, the newest first: the fixed-seed picture of each, or the best of its iteration.

import { element } from "../draw/elements.js"
import { shown } from "../draw/scales.js"
import { t } from "../words.js"
import { button, whenChanged } from "./parts.js"
import { versionCard } from "./version_card.js"

/** @typedef {import("./store.js").Version} Version */
/** @typedef {import("./store.js").Detail} Detail */

const PAGE = 60 // tiles at once; the older ones by a button

/** Where the picture of a version is. @param {string} run @param {Version} version @param {boolean} [anyway] */
export function pictureOf(run, version, anyway = false) {
    if (!version.look && !version.picture && !anyway) return null
    return `/runs/${encodeURIComponent(run)}/pictures/${version.version}?kind=${version.look ? "look" : "best"}&at=${version.at ?? 0}`
}

/**
 * The newest first; version 0 at the end where somebody looked at it.
 * @param {Detail} detail @returns {Version[]}
 */
export function shownVersions(detail) {
    const start = detail.looks.find((look) => look.version === 0)
    const zero = start ? [{ version: 0, at: start.at, lora_name: "", reward: null, picture: false, look: true, ema: false, back_to: null }] : []
    return [...zero, ...detail.versions].toReversed()
}

/** @param {import("./panel.js").Context} context */
export function versions(context) {
    const { address } = context
    const strip = element("div", { class: "sg-strip" })
    const older = button("", "", () => ((limit += 2 * PAGE), again()), { class: "sg-button sg-link" })
    const card = versionCard(context, () => select(null))
    const root = element("section", { "aria-label": t("runs.versions.label") }, element("h3", {}, t("runs.versions.label")), card.root, strip, older)
    /** @type {Map<number, {key: string, tile: HTMLElement}>} */
    let tiles = new Map()
    /** @type {Detail | null} */
    let detail = null
    let run = ""
    let limit = PAGE
    /** @type {number | null} */
    let chosen = null

    const draw = whenChanged((/** @type {{all: Version[], notes: string[], chosen: number | null, limit: number, run: string}} */ { all, notes }) => {
        const some = all.slice(0, limit)
        tiles = new Map(some.map((version) => [version.version, kept(version, notes)]))
        const next = some.map((version) => /** @type {{tile: HTMLElement}} */ (tiles.get(version.version)).tile)
        const focused = document.activeElement
        if (next.length !== strip.childElementCount || next.some((tile, i) => strip.children[i] !== tile)) strip.replaceChildren(...next)
        if (focused instanceof HTMLElement && strip.contains(focused)) focused.focus({ preventScroll: true })
        older.hidden = all.length <= limit
        older.textContent = t("runs.versions.older", { n: all.length - limit })
        root.hidden = !all.length
    })

    /** @param {Version} version @param {string[]} notes */
    function kept(version, notes) {
        const noted = notes.includes(String(version.version))
        const key = JSON.stringify([version, noted, version.version === chosen, run])
        const before = tiles.get(version.version)
        return before?.key === key ? before : { key, tile: tile(version, noted) }
    }

    /** @param {Version} version @param {boolean} noted */
    function tile(version, noted) {
        const place = pictureOf(run, version)
        const picture = place ? element("img", { src: address(place), loading: "lazy", decoding: "async", alt: "" }) : element("span", { class: "sg-nopicture", "aria-hidden": "true" }, "–")
        const tags = [version.back_to !== null ? `↩ ${version.back_to}` : "", place && !version.look ? t("runs.versions.best") : "", noted ? "✎" : ""].filter(Boolean)
        const label = [t("runs.versions.version", { n: version.version }), version.reward === null ? "" : t("runs.rewardOf", { value: shown(version.reward) })].filter(Boolean).join(", ")
        return element(
            "button",
            { type: "button", class: "sg-tile", "aria-label": label, "aria-pressed": version.version === chosen ? "true" : "false", "data-version": version.version, click: () => select(version.version === chosen ? null : version.version) },
            picture,
            ...(tags.length ? [element("span", { class: "sg-tags" }, ...tags.map((tag) => element("span", { class: "sg-tag" }, tag)))] : []),
            element("span", { class: "sg-tile-text" }, element("b", {}, `v${version.version}`), version.reward === null ? null : ` ${shown(version.reward)}`),
        )
    }

    /** @param {number | null} version */
    function select(version) {
        const before = chosen
        chosen = version
        again()
        if (version !== null) card.root.scrollIntoView({ block: "nearest" })
        else if (before !== null) tiles.get(before)?.tile.focus()
    }

    function again() {
        if (!detail) return
        const all = shownVersions(detail)
        draw({ all, notes: Object.keys(detail.notes), chosen, limit, run })
        card.update(run, detail, all.find((version) => version.version === chosen) ?? null)
    }

    return {
        root,
        /** @param {string} name @param {Detail} fresh */
        update(name, fresh) {
            if (name !== run) (chosen = null), (limit = PAGE), (tiles = new Map())
            run = name
            detail = fresh
            again()
        },
        /** Open one version. */
        select,
        close: () => card.close(),
    }
}
