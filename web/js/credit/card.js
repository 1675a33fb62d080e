// The card at the side: the step under the pointer or the pinned one, its estimates before and after, its facts; else best and worst picture.

import { element } from "../draw/elements.js"
import { t } from "../words.js"
import { cellName, facts, fixed, sumLine } from "./story.js"

/** @typedef {import("./view.js").Group} Group */
/** @typedef {import("./axis.js").Cell} Cell */
/** @typedef {import("./thumbnails.js").Thumbnails} Thumbnails */

/**
 * @param {Group} group @param {Thumbnails | null} thumbnails @param {number} decimals @param {() => void} unpin
 */
export function makeCard(group, thumbnails, decimals, unpin) {
    const title = element("strong", {})
    const close = element("button", { class: "sg-button", type: "button", "aria-label": t("credit.unpin"), title: t("credit.unpin"), click: unpin }, "✕")
    const pictures = thumbnails ? [makePicture(thumbnails), makePicture(thumbnails)] : []
    const list = element("dl", {})
    const sum = element("p", { class: "sg-sum" })
    const hint = element("p", { class: "sg-hint" })
    const root = element("aside", { class: "sg-card" }, element("header", {}, title, close), element("div", { class: "sg-pair" }, ...pictures.map((picture) => picture.root)), list, sum, hint)
    /** @param {Cell | null} cell @param {boolean} pinned */
    const show = (cell, pinned) => {
        root.classList.toggle("sg-pinned", pinned)
        root.classList.toggle("sg-ends", !cell)
        close.hidden = !pinned
        title.textContent = cell ? cellName(group, cell) : t("credit.ends")
        list.replaceChildren(...(cell ? facts(group, cell, decimals).flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]) : []))
        sum.textContent = cell ? sumLine(group, cell.member, decimals) : [group.best, group.worst].map((member) => sumLine(group, member, decimals)).join("\n")
        hint.textContent = t(cell ? "credit.hintCell" : "credit.hint")
        for (const [i, args] of (cell ? ofCell(group, cell, decimals) : ofEnds(group, decimals)).entries()) pictures[i]?.show(...args)
    }
    return { root, show }
}

/** @typedef {[member: number, state: number, caption: string, kind: string, seen: boolean]} Shown */

/**
 * Before and after the step; where nobody looked, the finished picture.
 * @param {Group} group @param {Cell} cell @param {number} decimals @returns {Shown[]}
 */
function ofCell(group, { member, step }, decimals) {
    const picture = (/** @type {number} */ k, /** @type {string} */ key) => {
        const reward = group.rewards[k][member]
        return /** @type {Shown} */ ([member, k, t(key, { reward: fixed(reward, decimals) }), "", reward !== null])
    }
    if (!group.looked) return [picture(group.steps, "credit.finished"), [member, 0, "", "", false]]
    return [picture(step, "credit.before"), picture(step + 1, "credit.after")]
}

/** @param {Group} group @param {number} decimals @returns {Shown[]} */
const ofEnds = (group, decimals) => [finished(group, group.best, "best", decimals), finished(group, group.worst, "worst", decimals)]

/** @param {Group} group @param {number} member @param {string} kind @param {number} decimals @returns {Shown} */
function finished(group, member, kind, decimals) {
    const reward = group.rewards[group.steps][member]
    return [member, group.steps, t(`credit.${kind}Picture`, { member: member + 1, reward: fixed(reward, decimals) }), kind, reward !== null]
}

/** @param {Thumbnails} thumbnails */
function makePicture(thumbnails) {
    const canvas = element("canvas", { class: "sg-picture", style: `--ratio: ${thumbnails.tile.width / thumbnails.tile.height}` })
    const caption = element("figcaption", {})
    const root = element("figure", {}, element("div", {}, canvas), caption)
    /** @param {Shown} shown */
    const show = (...[member, state, text, kind, seen]) => {
        caption.textContent = text
        root.dataset.kind = kind
        root.hidden = !seen
        thumbnails.draw(canvas, member, state)
    }
    return { root, show }
}
