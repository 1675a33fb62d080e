// A note that saves itself: when the field is left, and after a second without typing.

import { element } from "../draw/elements.js"
import { t } from "../words.js"

const QUIET = 1000 // ms
const LETTERS = 4000 // as the server takes

/**
 * @param {string} label @param {(text: string) => Promise<void>} save
 */
export function noteField(label, save) {
    let saved = ""
    let failed = false
    let busy = false
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer
    const said = element("span", { class: "sg-quiet", role: "status" })
    const field = element("textarea", { class: "sg-input", rows: 3, maxlength: LETTERS, "aria-label": label, placeholder: label, input: () => typed(), blur: () => void store() })

    function typed() {
        said.textContent = ""
        clearTimeout(timer)
        timer = setTimeout(store, QUIET)
    }

    async function store() {
        clearTimeout(timer)
        const text = field.value
        if (text === saved && !failed) return
        const before = saved
        saved = text
        busy = true
        try {
            await save(text)
            failed = false
            said.textContent = t("runs.note.saved")
        } catch (error) {
            failed = true
            saved = before
            said.textContent = error instanceof Error ? error.message : String(error)
        } finally {
            busy = false
        }
    }

    return {
        root: element("label", { class: "sg-note" }, element("span", { class: "sg-row" }, element("span", { class: "sg-grow" }, label), said), field),
        /** Of the server. What is being typed here stays. @param {string} text */
        update(text) {
            const typing = field.value !== saved
            if (text === saved || typing || busy) return
            saved = text
            field.value = text
        },
        /** Save now what is typed, before the field goes away. */
        close: () => void store(),
    }
}
