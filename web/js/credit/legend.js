// What the colours, the hatching and the lines mean.

import { element } from "../draw/elements.js"
import { t } from "../words.js"
import { gradient } from "./colours.js"
import { decimalsFor, withSign } from "./story.js"

/** @param {import("./view.js").Group} group @param {number} limit */
export function makeLegend(group, limit) {
    const [worse, better] = group.looked ? ["credit.worse", "credit.better"] : ["credit.discouraged", "credit.encouraged"]
    const end = (/** @type {number} */ value) => element("small", {}, withSign(value, decimalsFor(limit)))
    const bar = element("span", { class: "sg-ramp", style: `background: ${gradient()}` }, "0")
    const lines = ["best", "worst", "mean"].map((kind) => element("span", { class: "sg-key" }, element("i", { class: "sg-stroke", "data-kind": kind }), t(`credit.line.${kind}`)))
    return element(
        "footer",
        { class: "sg-legend" },
        element("span", { class: "sg-key" }, t(worse), end(-limit), bar, end(limit), t(better)),
        group.stochastic.size < group.steps ? element("span", { class: "sg-key" }, element("i", { class: "sg-swatch" }), t("credit.hatched")) : null,
        ...lines,
    )
}
