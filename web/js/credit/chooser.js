// Which prompt is shown: "2 of 12 · text", and the way to the others.

import { element } from "../draw/elements.js"
import { t } from "../words.js"

const LETTERS = 600 // of a prompt in the tooltip

/**
 * @param {string[]} texts @param {number} index @param {(step: number) => void} go
 */
export function makeChooser(texts, index, go) {
    const button = (/** @type {number} */ step, /** @type {string} */ sign, /** @type {string} */ label) =>
        element("button", { class: "sg-button", type: "button", "aria-label": label, title: label, click: () => go(step) }, sign)
    const text = texts[index] || t("credit.noText")
    const several = texts.length > 1
    return element(
        "nav",
        { class: "sg-chooser" },
        several ? button(-1, "‹", t("credit.previous")) : null,
        several ? element("span", { class: "sg-place" }, t("credit.place", { number: index + 1, count: texts.length })) : null,
        several ? button(1, "›", t("credit.next")) : null,
        element("span", { class: "sg-prompt", dir: "auto", title: text.length > LETTERS ? `${text.slice(0, LETTERS)} …` : text }, text.slice(0, LETTERS)),
    )
}
