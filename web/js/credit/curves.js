// Reward of the clean estimates over the states: a line a member, best, worst and mean on top. It stretches with the node; nothing is computed again.

import { element, svg } from "../draw/elements.js"
import { path, pieces } from "../draw/line_chart.js"
import { extent, linear, shown, ticks } from "../draw/scales.js"
import { t } from "../words.js"
import { placeOf } from "./axis.js"
import { meanOf } from "./view.js"

/** @typedef {import("./view.js").Group} Group */
/** @typedef {import("./axis.js").Cell} Cell */

/** @param {Group} group */
export function makeCurves(group) {
    const [low, high] = widened(extent(group.rewards.flat()) ?? [0, 1])
    const y = linear(low, high, 100, 0)
    const of = (/** @type {number} */ member) => group.rewards.map((row) => row[member])
    const others = group.rewards[0].map((_, i) => curve(of(i), "other", group.steps, y))
    const marked = [curve(of(group.worst), "worst", group.steps, y), curve(of(group.best), "best", group.steps, y), curve(group.rewards.map(meanOf), "mean", group.steps, y)]
    const chosen = curve([], "chosen", group.steps, y)
    const root = svg("svg", { class: "sg-curves", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "data-dots": !group.looked, "aria-label": t("credit.curves") }, ...others, ...marked, chosen)
    const band = element("div", { class: "sg-band-of", hidden: true })
    const levels = ticks(low, high, 4)
    const grid = levels.map((value) => element("div", { class: "sg-level", style: `top: ${y(value)}%` }))
    const side = element("div", { class: "sg-side sg-members" }, ...levels.map((value) => element("span", { style: `top: ${y(value)}%` }, shown(value))))
    /** @param {Cell | null} cell */
    const show = (cell) => {
        chosen.setAttribute("d", cell ? drawn(of(cell.member), group.steps, y) : "")
        band.hidden = cell === null
        if (cell) Object.assign(band.style, { left: `${placeOf(cell.step, group.steps)}%`, width: `${placeOf(1, group.steps) - placeOf(0, group.steps)}%` })
    }
    return { root: [side, element("div", { class: "sg-curve-area" }, ...grid, band, root)], show }
}

/** @param {[number, number]} range some room above and below */
function widened([low, high]) {
    const room = (high - low || Math.abs(high) || 1) * 0.06
    return [low - room, high + room]
}

/** @param {(number | null)[]} values @param {string} kind @param {number} steps @param {(value: number) => number} y */
const curve = (values, kind, steps, y) => svg("path", { class: "sg-curve", "data-kind": kind, d: drawn(values, steps, y) })

/**
 * A line through the known values; one that stands alone becomes a dot (a line of no length has round ends).
 * @param {(number | null)[]} values @param {number} steps @param {(value: number) => number} y
 */
export function drawn(values, steps, y) {
    const points = pieces(values).map((piece) => piece.map((k) => [placeOf(k, steps), y(/** @type {number} */ (values[k]))]))
    return points.map((piece) => path(piece.length === 1 ? [piece[0], piece[0]] : piece)).join("")
}
