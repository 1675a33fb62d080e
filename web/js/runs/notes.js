// A note that saves itself: when the field is left, and after a second without typing.

import { element } from "../draw/elements.js"
import { t } from "../words.js"
import { said, single } from "./store.js"

const QUIET = 1000 // ms
const LETTERS = 4000 // as the server takes

export class NoteField {
    #saved = ""
    #failed = false
    #busy = false
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    #timer
    #said = element("span", { class: "sg-quiet", role: "status" })

    /** @param {string} label @param {(text: string) => Promise<void>} save */
    constructor(label, save) {
        this.save = save
        this.store = single(() => this.#store()) // one at a time: an older answer must not bring an older text back
        this.field = element("textarea", { class: "sg-input", rows: 3, maxlength: LETTERS, "aria-label": label, placeholder: label, input: () => this.#typed(), blur: () => void this.store() })
        this.root = element("label", { class: "sg-note" }, element("span", { class: "sg-row" }, element("span", { class: "sg-grow" }, label), this.#said), this.field)
    }

    /** Of the server. What is being typed here stays. @param {string} text */
    update(text) {
        const typing = this.field.value !== this.#saved
        if (text === this.#saved || typing || this.#busy) return
        this.#saved = text
        this.field.value = text
    }

    /** Save now what is typed, before the field goes away. */
    close() {
        void this.store()
    }

    #typed() {
        this.#said.textContent = ""
        clearTimeout(this.#timer)
        this.#timer = setTimeout(this.store, QUIET)
    }

    async #store() {
        clearTimeout(this.#timer)
        const [before, text] = [this.#saved, this.field.value]
        if (text === before && !this.#failed) return
        this.#saved = text
        this.#busy = true
        try {
            await this.save(text)
            this.#failed = false
            this.#said.textContent = t("runs.note.saved")
        } catch (error) {
            this.#failed = true
            this.#saved = before
            this.#said.textContent = said(error)
        } finally {
            this.#busy = false
        }
    }
}
