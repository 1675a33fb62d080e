// Small parts that several boxes of the sidebar share.

import { element } from "../draw/elements.js"
import { t } from "../words.js"

/** @typedef {import("../draw/elements.js").Child} Child */

/**
 * A button with an icon of ComfyUI's icon font.
 * @param {string} icon such as "pi-play", or "" @param {string} text @param {() => void} click
 * @param {import("../draw/elements.js").Attributes} [more]
 */
export const button = (icon, text, click, more = {}) =>
    element("button", { type: "button", class: "sg-button", click, ...more }, icon ? element("i", { class: `pi ${icon}`, "aria-hidden": "true" }) : null, text)

/**
 * Text in a box with a button that copies it; where the browser does not let a page copy, it is selected.
 * @param {string} text @param {string} label what is copied, for screen readers
 */
export function copyable(text, label) {
    const code = element("code", { class: "sg-code", tabindex: 0, "aria-label": label }, text)
    const copy = button("pi-copy", t("runs.copy"), async () => {
        const done = await copied(text)
        if (!done) getSelection()?.selectAllChildren(code)
        copy.lastChild?.replaceWith(t(done ? "runs.copied" : "runs.selected"))
        setTimeout(() => copy.lastChild?.replaceWith(t("runs.copy")), 2000)
    })
    return element("div", { class: "sg-copyable" }, code, copy)
}

/** @param {string} text */
async function copied(text) {
    try {
        await navigator.clipboard.writeText(text) // missing where ComfyUI is not opened on localhost or by https
        return true
    } catch {
        return false
    }
}

/**
 * A question in the page's own text; it leaves when it is answered, and the focus goes back to what asked.
 * @param {string} text @param {string} yes what the button says @param {() => void} act
 */
export function question(text, yes, act) {
    const asked = /** @type {HTMLElement | null} */ (document.activeElement)
    const leave = () => (box.remove(), asked?.isConnected && asked.focus())
    const cancel = button("", t("runs.cancel"), leave)
    const go = button("", yes, () => (leave(), act()), { class: "sg-button sg-main" })
    const keydown = (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Escape") leave(), event.stopPropagation()
    }
    const box = element("div", { class: "sg-question", role: "alertdialog", "aria-label": text, keydown }, element("p", {}, text), element("div", { class: "sg-row" }, go, cancel))
    setTimeout(() => go.focus())
    return box
}

/**
 * Ask in a box that holds one question at a time.
 * @param {Element} root @param {Parameters<typeof question>} what
 */
export function askIn(root, ...what) {
    root.querySelector(".sg-question")?.remove()
    root.append(question(...what))
}

/**
 * How long ago, for people.
 * @param {number} seconds
 */
export function ago(seconds) {
    if (seconds < 60) return t("runs.ago.seconds", { n: Math.max(0, Math.round(seconds)) })
    if (seconds < 3600) return t("runs.ago.minutes", { n: Math.round(seconds / 60) })
    if (seconds < 48 * 3600) return t("runs.ago.hours", { n: Math.round(seconds / 3600) })
    return t("runs.ago.days", { n: Math.round(seconds / 86400) })
}

/**
 * Call `draw` only when what it shows has changed.
 * @template T @param {(value: T) => void} draw
 * @returns {(value: T) => void}
 */
export function whenChanged(draw) {
    let before = ""
    return (value) => {
        const now = JSON.stringify(value) ?? ""
        if (now !== before) draw(value)
        before = now
    }
}
