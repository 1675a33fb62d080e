// The heat map of mean |gain|: versions across, steps down, one sequential colour scale.

import { mixed, ramp } from "../draw/colours.js"
import { element } from "../draw/elements.js"
import { MARGIN } from "../draw/line_chart.js"
import { shown } from "../draw/scales.js"
import { t } from "../words.js"
import { heatCells } from "./series.js"

// Cividis: even in lightness, and the same to people with and without colour vision. From little to much.
/** @type {import("../draw/colours.js").Colour[]} */
export const SCALE = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]]

/**
 * @param {(number | null)[][]} gains [version][step] @param {number} width px @param {string} label
 * @returns {HTMLElement | null} null where no version recorded its gains
 */
export function heatMap(gains, width, label) {
    const { rows, columns, cells, highest } = heatCells(gains, (width - MARGIN.left - MARGIN.right) / 2)
    if (!rows) return null
    const canvas = element("canvas", { class: "sg-heat", width: columns, height: rows, role: "img", "aria-label": label })
    paint(canvas, cells, rows, highest)
    const sides = element("div", { class: "sg-heat-sides" }, element("span", {}, t("runs.chart.firstStep")), element("span", {}, t("runs.chart.lastStep")))
    const key = element("div", { class: "sg-heat-key sg-quiet" }, "0 ", element("span", { class: "sg-ramp", style: `background: ${ramp(SCALE)}` }), ` ${shown(highest)}`)
    return element("div", {}, element("div", { class: "sg-heat-row" }, sides, canvas), key)
}

/** @param {HTMLCanvasElement} canvas @param {(number | null)[][]} cells [column][row] @param {number} rows @param {number} highest */
function paint(canvas, cells, rows, highest) {
    const context = canvas.getContext("2d")
    if (!context) return
    const image = context.createImageData(cells.length, rows)
    cells.forEach((column, c) =>
        column.forEach((value, k) => {
            if (value !== null) image.data.set([...mixed(SCALE, highest ? value / highest : 0), 255], 4 * (k * cells.length + c))
        }),
    )
    context.putImageData(image, 0, 0)
}
