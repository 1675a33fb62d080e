// The map member x step. Its cells are the pixels of a tiny canvas, so that size and zoom cost nothing and pointing at it redraws nothing.

import { element } from "../draw/elements.js"
import { t } from "../words.js"
import { apart, cellAt, placeOf } from "./axis.js"
import { pixels } from "./colours.js"

/** @typedef {import("./view.js").Group} Group */
/** @typedef {import("./axis.js").Cell} Cell */
/**
 * @typedef {object} Listeners
 * @property {(cell: Cell | null) => void} point @property {(cell: Cell) => void} choose @property {(event: KeyboardEvent) => void} key
 */

const LABEL = 11 // percent of the height that a label needs

/**
 * @param {Group} group @param {number} limit @param {Listeners} on
 */
export function makeHeatMap(group, limit, on) {
    const { steps, size } = group
    const canvas = element("canvas", { width: steps, height: size, class: "sg-cells" })
    canvas.getContext("2d")?.putImageData(new ImageData(pixels(group.values, limit), steps, size), 0, 0)
    const cursor = element("div", { class: "sg-cursor", hidden: true })
    const pin = element("div", { class: "sg-cursor sg-pin", hidden: true })
    const label = t("credit.map", { size, steps })
    const map = element(
        "div",
        { class: "sg-map", tabindex: 0, role: "application", "aria-label": label, style: `--steps: ${steps}; --members: ${size}`, keydown: on.key },
        ...[canvas, ...hatches(group), line(group, group.best, "best"), line(group, group.worst, "worst"), cursor, pin],
    )
    listen(map, group, on)
    const from = placeOf(0, steps)
    const area = element("div", { class: "sg-map-area" }, map)
    map.style.left = map.style.right = `${from}%`
    return { root: [sideLabels(group), area], map, show: (/** @type {Cell | null} */ cell, /** @type {Cell | null} */ pinned) => [put(cursor, cell, group), put(pin, pinned, group)] }
}

/** @param {HTMLElement} map @param {Group} group @param {Listeners} on */
function listen(map, group, on) {
    const cell = (/** @type {MouseEvent} */ event) => {
        const place = map.getBoundingClientRect()
        return cellAt((event.clientX - place.left) / place.width, (event.clientY - place.top) / place.height, group)
    }
    map.addEventListener("pointermove", (event) => on.point(cell(event)))
    map.addEventListener("pointerleave", () => on.point(null))
    map.addEventListener("click", (event) => on.choose(cell(event)))
    map.addEventListener("blur", () => on.point(null))
}

/**
 * Steps without randomness, drawn as one block where they lie side by side.
 * @param {Group} group
 */
function hatches({ steps, stochastic }) {
    const blocks = /** @type {[number, number][]} */ ([])
    for (let k = 0; k < steps; k++) {
        if (stochastic.has(k)) continue
        const last = blocks.at(-1)
        if (last && last[1] === k) last[1] = k + 1
        else blocks.push([k, k + 1])
    }
    return blocks.map(([from, to]) =>
        element("div", { class: "sg-hatch", style: `left: ${(100 * from) / steps}%; width: ${(100 * (to - from)) / steps}%` }, element("span", {}, t("credit.notRandom"))),
    )
}

/** @param {Group} group @param {number} member @param {string} kind */
const line = ({ size }, member, kind) => element("div", { class: "sg-line-of", "data-kind": kind, style: `top: ${(100 * member) / size}%; height: ${100 / size}%` })

/**
 * The rows' numbers: best and worst with their word, first and last where there is room.
 * @param {Group} group
 */
function sideLabels({ size, best, worst }) {
    const middle = (/** @type {number} */ member) => (100 * (member + 0.5)) / size
    const marked = best === worst ? [best] : [best, worst]
    const places = apart(marked.map(middle), LABEL)
    const ends = [...new Set([0, size - 1])].filter((member) => places.every((place) => Math.abs(place - middle(member)) >= LABEL) && !marked.includes(member))
    const side = (/** @type {number} */ place, /** @type {string} */ text, /** @type {string} */ kind) => element("span", { style: `top: ${place}%`, "data-kind": kind }, text)
    const named = marked.map((member, i) => side(places[i], t(i ? "credit.worst" : "credit.best", { member: member + 1 }), i ? "worst" : "best"))
    return element("div", { class: "sg-side sg-members" }, ...ends.map((member) => side(middle(member), String(member + 1), "")), ...named)
}

/** @param {HTMLElement} box @param {Cell | null} cell @param {Group} group */
function put(box, cell, { steps, size }) {
    box.hidden = cell === null
    if (cell) Object.assign(box.style, { left: `${(100 * cell.step) / steps}%`, width: `${100 / steps}%`, top: `${(100 * cell.member) / size}%`, height: `${100 / size}%` })
}
