// The numbers along the plot: steps above the map, times below the curves.

import { element } from "../draw/elements.js"
import { t } from "../words.js"
import { placeOf, shownStates, strideOf } from "./axis.js"

/** @typedef {import("./view.js").Group} Group */

/**
 * Numbers of the steps, the one that earned most marked.
 * @param {Group} group
 */
export function stepNumbers({ steps, earner, alike }) {
    const most = earner && !alike && earner.gain > 0 ? earner.step : -1
    const stride = strideOf(steps)
    const numbers = Array.from({ length: steps }, (_, k) => k).filter((k) => k === most || (k % stride === 0 && (most < 0 || Math.abs(k - most) >= stride)))
    const label = (/** @type {number} */ k) => element("span", { style: `left: ${placeOf(k + 0.5, steps)}%`, "data-kind": k === most ? "best" : "" }, k === most ? `▼ ${k + 1}` : String(k + 1))
    return [element("div", { class: "sg-side" }, t("credit.step")), element("div", { class: "sg-axis sg-steps" }, ...numbers.map(label))]
}

/**
 * Times of the states that have a thumbnail.
 * @param {Group} group
 */
export function timeLabels({ steps, times }) {
    const labels = shownStates(steps).map((k) => element("span", { style: `left: ${placeOf(k, steps)}%` }, times[k].toFixed(2)))
    return [element("div", { class: "sg-side" }, t("credit.time")), element("div", { class: "sg-axis" }, ...labels)]
}
