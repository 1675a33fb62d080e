// The heat map of mean |gain|: versions across, steps down, one sequential colour scale.

import { element } from "../draw/elements.js"
import { shown } from "../draw/scales.js"
import { t } from "../words.js"
import { heatCells } from "./series.js"

// Cividis: even in lightness, and the same to people with and without colour vision. From little to much.
const SCALE = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]]
export const LEFT = 44 // px, as the charts'
export const RIGHT = 10

/** @param {number} share 0 to 1 */
export function colour(share) {
    const place = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1)
    const low = Math.min(Math.floor(place), SCALE.length - 2)
    return SCALE[low].map((part, i) => Math.round(part + (place - low) * (SCALE[low + 1][i] - part)))
}

/**
 * @param {(number | null)[][]} gains [version][step] @param {number} width px @param {string} label
 * @returns {HTMLElement | null} null where no version recorded its gains
 */
export function heatMap(gains, width, label) {
    const { rows, columns, cells, highest } = heatCells(gains, (width - LEFT - RIGHT) / 2)
    if (!rows) return null
    const canvas = element("canvas", { class: "sg-heat", width: columns, height: rows, role: "img", "aria-label": label })
    paint(canvas, cells, rows, highest)
    const sides = element("div", { class: "sg-heat-sides" }, element("span", {}, t("runs.chart.firstStep")), element("span", {}, t("runs.chart.lastStep")))
    const ramp = `linear-gradient(to right, ${SCALE.map((part) => `rgb(${part.join(" ")})`).join(", ")})`
    const key = element("div", { class: "sg-heat-key sg-quiet" }, "0 ", element("span", { class: "sg-ramp", style: `background: ${ramp}` }), ` ${shown(highest)}`)
    return element("div", {}, element("div", { class: "sg-heat-row" }, sides, canvas), key)
}

/** @param {HTMLCanvasElement} canvas @param {(number | null)[][]} cells [column][row] @param {number} rows @param {number} highest */
function paint(canvas, cells, rows, highest) {
    const context = canvas.getContext("2d")
    if (!context) return
    const image = context.createImageData(cells.length, rows)
    cells.forEach((column, c) =>
        column.forEach((value, k) => {
            if (value !== null) image.data.set([...colour(highest ? value / highest : 0), 255], 4 * (k * cells.length + c))
        }),
    )
    context.putImageData(image, 0, 0)
}
