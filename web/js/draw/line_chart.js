// A small chart of lines over one axis. It knows nothing of what it shows.

import { svg } from "./elements.js"
import { extent, linear, shown, ticks } from "./scales.js"

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {(number | null)[]} values one for each x; null leaves a gap
 * @property {string} className decides colour and width
 * @property {(number | null)[]} [spread] half height of a band around the line
 * @property {boolean} [dots] draw the points, where there are few
 */
/**
 * @typedef {object} Chart
 * @property {number} width @property {number} height in px
 * @property {number[]} xs rising
 * @property {Line[]} lines
 * @property {[number, number]} [range] of y; by the values where absent
 * @property {{x: number, className: string, title: string}[]} [marks] upright lines
 * @property {string} label what a screen reader says
 */

/** Around the lines, px. */
export const MARGIN = { left: 44, right: 10, top: 8, bottom: 20 }

/**
 * The chart as an SVG element, and the places of its axes.
 * @param {Chart} chart
 */
export function lineChart(chart) {
    const { width, height, xs, lines } = chart
    const all = lines.flatMap((line) => line.values.flatMap((value, i) => (value === null ? [] : [value - (line.spread?.[i] ?? 0), value + (line.spread?.[i] ?? 0)])))
    const [low, high] = padded(chart.range ?? extent(all) ?? [0, 1])
    const x = linear(xs[0] ?? 0, xs.at(-1) ?? 1, MARGIN.left, width - MARGIN.right)
    const y = linear(low, high, height - MARGIN.bottom, MARGIN.top)
    const root = svg("svg", { class: "sg-chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": chart.label })
    root.append(...yAxis(low, high, y, width), ...xAxis(xs, x, height))
    for (const mark of chart.marks ?? []) root.append(svg("line", { class: mark.className, x1: x(mark.x), x2: x(mark.x), y1: MARGIN.top, y2: height - MARGIN.bottom }, svg("title", {}, mark.title)))
    for (const line of lines) root.append(...drawn(line, xs, x, y))
    return { root, x, y }
}

/** @param {[number, number]} range @returns {[number, number]} */
const padded = ([low, high]) => (low === high ? [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10] : [low, high])

/** @param {number} low @param {number} high @param {(v: number) => number} y @param {number} width */
function yAxis(low, high, y, width) {
    return ticks(low, high, 3).flatMap((value) => [
        svg("line", { class: "sg-grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
        svg("text", { class: "sg-tick", x: MARGIN.left - 5, y: y(value) + 4, "text-anchor": "end" }, shown(value)),
    ])
}

/** @param {number[]} xs @param {(v: number) => number} x @param {number} height */
function xAxis(xs, x, height) {
    const whole = ticks(xs[0] ?? 0, xs.at(-1) ?? 1, 6).filter(Number.isInteger)
    return whole.map((value) => svg("text", { class: "sg-tick", x: x(value), y: height - 5, "text-anchor": "middle" }, shown(value)))
}

/** @param {Line} line @param {number[]} xs @param {(v: number) => number} x @param {(v: number) => number} y */
function drawn(line, xs, x, y) {
    const parts = pieces(line.values)
    const bands = line.spread === undefined ? [] : parts.map((part) => svg("path", { class: `${line.className} sg-band`, d: band(part, line, xs, x, y) }))
    const paths = parts.map((part) => svg("path", { class: `${line.className} sg-line`, d: path(part.map((i) => [x(xs[i]), y(/** @type {number} */ (line.values[i]))])) }))
    const alone = line.dots ? parts.flat() : parts.filter((part) => part.length === 1).flat()
    const dots = alone.map((i) => svg("circle", { class: `${line.className} sg-dot`, cx: x(xs[i]), cy: y(/** @type {number} */ (line.values[i])), r: 3 }))
    return [...bands, ...paths, ...dots]
}

/**
 * Runs of indices whose values are numbers.
 * @param {(number | null)[]} values
 */
export function pieces(values) {
    /** @type {number[][]} */
    const result = []
    values.forEach((value, i) => {
        if (value === null) return
        if (i > 0 && values[i - 1] !== null) result.at(-1)?.push(i)
        else result.push([i])
    })
    return result
}

/** @param {number[]} part @param {Line} line @param {number[]} xs @param {(v: number) => number} x @param {(v: number) => number} y */
function band(part, line, xs, x, y) {
    const edge = (/** @type {number} */ sign, /** @type {number} */ i) => [x(xs[i]), y(/** @type {number} */ (line.values[i]) + sign * (line.spread?.[i] ?? 0))]
    return `${path([...part.map((i) => edge(1, i)), ...part.toReversed().map((i) => edge(-1, i))])}Z`
}

/** @param {number[][]} points */
export const path = (points) => points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("")
