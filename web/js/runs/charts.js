// The live curves of the open run. They share their x, the version; pointing at one shows that version's values in all.

import { element, svg } from "../draw/elements.js"
import { lineChart, MARGIN } from "../draw/line_chart.js"
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

export class Charts {
    /** @type {Series} */
    #series = seriesOf([], [])
    #width = 0
    #pointed = -1
    #boxes = [...KINDS.map((kind) => chartBox(kind)), heatBox()]
    #at = element("span", { class: "sg-quiet" })

    constructor() {
        const listeners = { keydown: (/** @type {KeyboardEvent} */ event) => this.#key(event), pointermove: (/** @type {PointerEvent} */ event) => this.#follow(event), pointerleave: () => this.#point(-1) }
        this.area = element("div", { class: "sg-charts", tabindex: 0, role: "group", "aria-label": t("runs.chart.keys"), ...listeners }, ...this.#boxes.map((box) => box.root))
        this.root = element("section", { "aria-label": t("runs.chart.label") }, element("h3", { class: "sg-row" }, element("span", { class: "sg-grow" }, t("runs.chart.label")), this.#at), this.area)
        this.observer = new ResizeObserver(([entry]) => this.#resize(Math.floor(entry.contentRect.width)))
        this.observer.observe(this.area)
        this.draw = whenChanged((/** @type {Series} */ fresh) => {
            this.#series = fresh
            this.#redraw()
        })
    }

    /** @param {import("./store.js").Detail} detail */
    update(detail) {
        this.draw(seriesOf(detail.events, detail.looks))
    }

    close() {
        this.observer.disconnect()
    }

    /** @param {number} i place of a version; -1 = the newest, without a line */
    #point(i) {
        const { versions } = this.#series
        const shownAt = i < 0 ? versions.length - 1 : i
        this.#pointed = i
        this.#at.textContent = shownAt < 0 ? "" : t(i < 0 ? "runs.chart.newest" : "runs.chart.at", { n: versions[shownAt] })
        for (const box of this.#boxes) box.point(this.#series, i)
    }

    /** @param {PointerEvent} event */
    #follow(event) {
        const { versions } = this.#series
        const chart = this.area.querySelector("svg")
        if (!chart || !versions.length) return
        const share = (event.clientX - chart.getBoundingClientRect().left - MARGIN.left) / (this.#width - MARGIN.right - MARGIN.left)
        const [first, last] = [versions[0], versions[versions.length - 1]]
        this.#point(nearest(versions, first + share * (last - first)))
    }

    /** @param {KeyboardEvent} event */
    #key(event) {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
        const last = this.#series.versions.length - 1
        if (by === undefined || last < 0) return
        event.preventDefault()
        this.#point(this.#pointed < 0 ? last : Math.min(last, Math.max(0, this.#pointed + by)))
    }

    /** @param {number} width px */
    #resize(width) {
        if (width === this.#width || width <= 0) return
        this.#width = width
        this.#redraw()
    }

    #redraw() {
        this.root.hidden = !this.#series.versions.length
        if (this.#width > 0) for (const box of this.#boxes) box.draw(this.#series, this.#width)
        this.#point(this.#pointed < this.#series.versions.length ? this.#pointed : -1)
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
            const cursor = svg("line", { class: "sg-cursor", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" })
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
