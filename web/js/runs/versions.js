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

export class VersionStrip {
    /** @type {Map<number, {key: string, tile: HTMLElement}>} */
    #tiles = new Map()
    /** @type {Detail | null} */
    #detail = null
    #run = ""
    #limit = PAGE
    /** @type {number | null} */
    #chosen = null
    #strip = element("div", { class: "sg-strip" })

    /** @param {import("./panel.js").Context} context */
    constructor(context) {
        this.context = context
        this.older = button("", "", () => ((this.#limit += 2 * PAGE), this.#again()), { class: "sg-button sg-link" })
        this.card = versionCard(context, () => this.select(null))
        this.root = element("section", { "aria-label": t("runs.versions.label") }, element("h3", {}, t("runs.versions.label")), this.card.root, this.#strip, this.older)
        this.draw = whenChanged((/** @type {{all: Version[], notes: string[]}} */ { all, notes }) => this.#draw(all, notes))
    }

    /** @param {string} name @param {Detail} fresh */
    update(name, fresh) {
        if (name !== this.#run) (this.#chosen = null), (this.#limit = PAGE), (this.#tiles = new Map())
        this.#run = name
        this.#detail = fresh
        this.#again()
    }

    /** Open one version, or none. @param {number | null} version */
    select(version) {
        const before = this.#chosen
        this.#chosen = version
        this.#again()
        if (version !== null) this.card.root.scrollIntoView({ block: "nearest" })
        else if (before !== null) this.#tiles.get(before)?.tile.focus()
    }

    close() {
        this.card.close()
    }

    #again() {
        if (!this.#detail) return
        const all = shownVersions(this.#detail)
        this.draw({ all, notes: Object.keys(this.#detail.notes), ...{ chosen: this.#chosen, limit: this.#limit, run: this.#run } })
        this.card.update(this.#run, this.#detail, all.find((version) => version.version === this.#chosen) ?? null)
    }

    /** @param {Version[]} all @param {string[]} notes */
    #draw(all, notes) {
        const kept = all.slice(0, this.#limit).map((version) => /** @type {const} */ ([version.version, this.#kept(version, notes.includes(String(version.version)))]))
        this.#tiles = new Map(kept)
        const next = kept.map(([, { tile }]) => tile)
        const focused = document.activeElement
        if (next.length !== this.#strip.childElementCount || next.some((tile, i) => this.#strip.children[i] !== tile)) this.#strip.replaceChildren(...next)
        if (focused instanceof HTMLElement && this.#strip.contains(focused)) focused.focus({ preventScroll: true })
        this.older.hidden = all.length <= this.#limit
        this.older.textContent = t("runs.versions.older", { n: all.length - this.#limit })
        this.root.hidden = !all.length
    }

    /** The tile as it is where nothing of it changed. @param {Version} version @param {boolean} noted */
    #kept(version, noted) {
        const chosen = version.version === this.#chosen
        const heldOut = this.#detail?.looks.find((look) => look.version === version.version)?.reward_mean ?? null
        const key = JSON.stringify([version, noted, chosen, heldOut, this.#run])
        const before = this.#tiles.get(version.version)
        const click = () => this.select(chosen ? null : version.version)
        return before?.key === key ? before : { key, tile: tile(version, { address: this.context.address, run: this.#run, noted, chosen, heldOut, click }) }
    }
}

/** @param {Version} version @param {{address: (path: string) => string, run: string, noted: boolean, chosen: boolean, heldOut: number | null, click: () => void}} more - `heldOut`: the mean reward of its own fixed-seed pictures */
function tile(version, { address, run, noted, chosen, heldOut, click }) {
    const place = pictureOf(run, version)
    const picture = place ? element("img", { src: address(place), loading: "lazy", decoding: "async", alt: "" }) : element("span", { class: "sg-nopicture", "aria-hidden": "true" }, "–")
    const tags = [version.back_to !== null ? `↩ ${version.back_to}` : "", place && !version.look ? t("runs.versions.best") : "", noted ? "✎" : ""].filter(Boolean)
    const label = [t("runs.versions.version", { n: version.version }), heldOut === null ? "" : t("runs.chart.heldOutOf", { value: shown(heldOut) })].filter(Boolean).join(", ")
    return element(
        "button",
        { type: "button", class: "sg-tile", "aria-label": label, "aria-pressed": chosen ? "true" : "false", "data-version": version.version, click },
        picture,
        ...(tags.length ? [element("span", { class: "sg-tags" }, ...tags.map((tag) => element("span", { class: "sg-tag" }, tag)))] : []),
        element("span", { class: "sg-tile-text" }, element("b", {}, `v${version.version}`), heldOut === null ? null : ` ${shown(heldOut)}`),
    )
}
