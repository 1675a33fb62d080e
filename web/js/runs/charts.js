// The live curves of the open run. They share their x, the version; pointing at one shows that version's values in all.

import { element, svg } from "../draw/elements.js"
import { lineChart } from "../draw/line_chart.js"
import { shown } from "../draw/scales.js"
import { t } from "../words.js"
import { heatMap } from "./heat.js"
import { whenChanged } from "./parts.js"
import { nearest, seriesOf, strongestStep } from "./series.js"

/** @typedef {import("./series.js").Series} Series */
/** @typedef {{key: string, height: number, lines: (series: Series) => import("../draw/line_chart.js").Line[], values: (series: Series, i: number) => string, range?: [number, number], off?: (series: Series) => string}} Kind */

/** @type {Kind[]} */
const KINDS = [
    {
        key: "reward",
        height: 140,
        lines: (series) => [
            { name: t("runs.chart.mean"), values: series.reward, spread: series.spread.map((value) => value ?? 0), className: "sg-reward" },
            { name: t("runs.chart.heldOut"), values: series.heldOut, className: "sg-held", dots: true },
        ],
        values: ({ reward, spread, heldOut }, i) => [reward[i] === null ? "" : `${shown(reward[i])} ± ${shown(spread[i])}`, heldOut[i] === null ? "" : t("runs.chart.heldOutOf", { value: shown(heldOut[i]) })].filter(Boolean).join(" · ") || "–",
    },
    { key: "kl", height: 90, lines: ({ kl }) => [{ name: "KL", values: kl, className: "sg-kl" }], values: ({ kl }, i) => shown(kl[i]), off: ({ klOff }) => (klOff ? t("runs.chart.klOff") : "") },
    { key: "clip", height: 90, range: [0, 0.5], lines: ({ clip }) => [{ name: "clip", values: clip, className: "sg-clip" }], values: ({ clip }, i) => (clip[i] === null ? "–" : `${shown(100 * (clip[i] ?? 0))} %`) },
]

/** @typedef {{draw: (series: Series, width: number) => void, point: (series: Series, i: number) => void, root: HTMLElement}} Box */

export function charts() {
    const boxes = [...KINDS.map((kind) => chartBox(kind)), heatBox()]
    const at = element("span", { class: "sg-quiet" })
    const keydown = (/** @type {KeyboardEvent} */ event) => step({ ArrowLeft: -1, ArrowRight: 1 }[event.key], event)
    const area = element("div", { class: "sg-charts", tabindex: 0, role: "group", "aria-label": t("runs.chart.keys"), keydown, pointermove: (event) => follow(event), pointerleave: () => point(-1) }, ...boxes.map((box) => box.root))
    const root = element("section", { "aria-label": t("runs.chart.label") }, element("h3", { class: "sg-row" }, element("span", { class: "sg-grow" }, t("runs.chart.label")), at), area)
    /** @type {Series} */
    let series = seriesOf([], [])
    let width = 0
    let pointed = -1

    /** @param {number} i place of a version; -1 = the newest, without a line */
    function point(i) {
        pointed = i
        const shownAt = i < 0 ? series.versions.length - 1 : i
        at.textContent = shownAt < 0 ? "" : t(i < 0 ? "runs.chart.newest" : "runs.chart.at", { n: series.versions[shownAt] })
        for (const box of boxes) box.point(series, i)
    }

    /** @param {PointerEvent} event */
    function follow(event) {
        const svg = area.querySelector("svg")
        if (!svg || !series.versions.length) return
        const [left, right] = [44, width - 10]
        const share = (event.clientX - svg.getBoundingClientRect().left - left) / (right - left)
        const [first, last] = [series.versions[0], series.versions[series.versions.length - 1]]
        point(nearest(series.versions, first + share * (last - first)))
    }

    /** @param {number | undefined} by @param {KeyboardEvent} event */
    function step(by, event) {
        if (by === undefined || !series.versions.length) return
        event.preventDefault()
        const last = series.versions.length - 1
        point(Math.min(last, Math.max(0, (pointed < 0 ? last : pointed) + (pointed < 0 && by < 0 ? 0 : by))))
    }

    function redraw() {
        root.hidden = !series.versions.length
        if (width > 0) for (const box of boxes) box.draw(series, width)
        point(pointed < series.versions.length ? pointed : -1)
    }

    const observer = new ResizeObserver(([entry]) => {
        const now = Math.floor(entry.contentRect.width)
        if (now !== width && now > 0) (width = now), redraw()
    })
    observer.observe(area)
    const draw = whenChanged((/** @type {Series} */ fresh) => {
        series = fresh
        redraw()
    })
    return {
        root,
        /** @param {import("./store.js").Detail} detail */
        update: (detail) => draw(seriesOf(detail.events, detail.looks)),
        close: () => observer.disconnect(),
    }
}

/** @param {Kind} kind @returns {Box} */
function chartBox({ key, height, lines, values, range, off }) {
    const { root, value, body } = box(key)
    /** @type {{x: (v: number) => number, cursor: SVGLineElement} | null} */
    let drawn = null
    return {
        root,
        draw(series, width) {
            const without = off?.(series)
            drawn = null
            root.classList.toggle("sg-has-held", series.heldOut.some((one) => one !== null))
            if (without) return void body.replaceChildren(element("p", { class: "sg-quiet" }, without))
            const marks = series.backs.map(({ x, to }) => ({ x, className: "sg-back", title: t("runs.chart.back", { x, to }) }))
            const all = lines(series)
            const highest = Math.max(...all.flatMap((line) => line.values.map((one) => one ?? 0)))
            const chart = lineChart({ width, height, xs: series.versions, lines: all, marks, range: range && [range[0], Math.max(range[1], highest)], label: t(`runs.chart.${key}`) })
            const cursor = svg("line", { class: "sg-cursor", y1: 8, y2: height - 20, visibility: "hidden" })
            chart.root.append(cursor)
            drawn = { x: chart.x, cursor }
            body.replaceChildren(chart.root)
        },
        point(series, i) {
            const last = series.versions.length - 1
            value.textContent = last < 0 || off?.(series) ? "" : values(series, i < 0 ? last : i)
            drawn?.cursor.setAttribute("visibility", i < 0 ? "hidden" : "visible")
            if (drawn && i >= 0) for (const end of ["x1", "x2"]) drawn.cursor.setAttribute(end, String(drawn.x(series.versions[i])))
        },
    }
}

/** @returns {Box} */
function heatBox() {
    const { root, value, body } = box("gain")
    return {
        root,
        draw(series, width) {
            const best = strongestStep(series.gains)
            const label = best ? t("runs.chart.strongest", { step: best.step + 1, gain: shown(best.gain) }) : ""
            body.replaceChildren(heatMap(series.gains, width, `${t("runs.chart.gain")}. ${label}`) ?? element("p", { class: "sg-quiet" }, t("runs.chart.noGain")))
        },
        point(series, i) {
            const column = series.gains[i < 0 ? series.gains.length - 1 : i] ?? []
            const best = strongestStep([column])
            value.textContent = best ? t("runs.chart.strongest", { step: best.step + 1, gain: shown(best.gain) }) : ""
        },
    }
}

/** @param {string} key */
function box(key) {
    const value = element("span", { class: "sg-value" })
    const body = element("div")
    const held = key === "reward" ? element("span", { class: "sg-legend-held sg-quiet" }, element("span", { class: "sg-sample sg-sample-held", "aria-hidden": "true" }), t("runs.chart.heldOut")) : null
    const title = element("span", { class: "sg-grow", title: t(`runs.chart.${key}Help`) }, element("span", { class: `sg-sample sg-sample-${key}`, "aria-hidden": "true" }), t(`runs.chart.${key}`), held)
    return { root: element("figure", { class: "sg-figure" }, element("figcaption", { class: "sg-row" }, title, value), body), value, body }
}
