// The Credit Visualizer's widget: it reads a stored view and keeps its parts on the same cell. It knows nothing of ComfyUI.

import { element } from "../draw/elements.js"
import { t } from "../words.js"
import { moved } from "./axis.js"
import { makeCard } from "./card.js"
import { makeChooser } from "./chooser.js"
import { makeCurves } from "./curves.js"
import { makeHeatMap } from "./heat_map.js"
import { stepNumbers, timeLabels } from "./labels.js"
import { makeLegend } from "./legend.js"
import { decimalsFor, fixed, headline, spoken } from "./story.js"
import { makeStrip } from "./strip.js"
import { Thumbnails } from "./thumbnails.js"
import { colourLimit, groupOf, lacking, mostTelling, rewardScale } from "./view.js"

/** @typedef {import("./axis.js").Cell} Cell */
/** @typedef {import("./view.js").View} View */
/** @typedef {import("./view.js").Group} Group */
/** @typedef {{read: (id: string) => Promise<View>, picture: (id: string, group: number) => string}} Store */
/** @typedef {{show: (cell: Cell | null, pinned: boolean) => void, map: HTMLElement}} Drawn */

const OTHER_PROMPT = /** @type {{[key: string]: number}} */ ({ "[": -1, PageUp: -1, "]": 1, PageDown: 1 })

export class CreditWidget {
    /** @type {string} the view that is shown or on its way */
    #id = ""
    #shownId = "" // of the view that is drawn; #id runs ahead while another loads
    /** @type {View | null} */
    #view = null
    /** @type {Group | null} */
    #group = null
    /** @type {Cell | null} */
    #pointed = null
    /** @type {Cell | null} */
    #pinned = null
    /** @type {Thumbnails | null} */
    #thumbnails = null
    /** @type {Drawn | null} */
    #drawn = null
    #frame = 0
    #body = element("div", { class: "sg-credit-body" })
    #live = element("div", { class: "sg-live", "aria-live": "polite" })

    /** @param {Store} store */
    constructor(store) {
        this.store = store
        this.root = element("div", { class: "sg-credit widget-expands" }, this.#body, this.#live)
    }

    /** What will appear here, before there is anything. */
    empty() {
        if (!this.#id) this.say(t("credit.empty"))
    }

    /**
     * A sentence in the place of everything else.
     * @param {string} text
     */
    say(text) {
        this.#forget()
        this.#id = ""
        this.#body.replaceChildren(element("p", { class: "sg-note" }, text))
        this.root.dataset.drawn = ""
    }

    /**
     * Show a stored view.
     * @param {string} id
     */
    async show(id) {
        if (id === this.#id) return
        this.#id = id
        try {
            const view = await this.store.read(id)
            if (id !== this.#id) return
            const missing = lacking(view)
            if (missing) return this.say(t("credit.other", { missing }))
            this.#view = view
            this.#shownId = id
            await this.#choose(mostTelling(view))
        } catch (error) {
            if (id === this.#id) this.say(sentence(error))
        }
    }

    /** Give everything back; the widget can be used again. */
    close() {
        this.#forget()
        this.#id = ""
        this.#body.replaceChildren()
    }

    #forget() {
        cancelAnimationFrame(this.#frame)
        this.#frame = 0
        this.#thumbnails?.close()
        this.#thumbnails = this.#view = this.#group = this.#pointed = this.#pinned = this.#drawn = null
        this.#live.textContent = ""
    }

    /**
     * Show a prompt of the view; done when its thumbnails are there.
     * @param {number} index
     */
    async #choose(index) {
        const view = /** @type {View} */ (this.#view)
        const focused = this.#body.contains(document.activeElement)
        this.#thumbnails?.close()
        const thumbnails = (this.#thumbnails = view.thumbnails && new Thumbnails(view.thumbnails))
        this.#pointed = this.#pinned = null
        this.#group = groupOf(view, index)
        this.#drawn = this.#draw(view, this.#group)
        if (focused) this.#drawn.map.focus({ preventScroll: true })
        this.#update()
        const id = this.#shownId // another may be on its way
        // Without its pictures, as after the files were removed in between, the map is still worth looking at.
        await thumbnails?.load(this.store.picture(id, index)).catch(() => {})
        if (thumbnails !== this.#thumbnails || id !== this.#shownId) return thumbnails?.close()
        this.#update()
        this.root.dataset.drawn = `${id} ${index}`
    }

    /** @param {View} view @param {Group} group @returns {Drawn} */
    #draw(view, group) {
        const limit = colourLimit(view)
        const decimals = decimalsFor(rewardScale(view))
        const map = makeHeatMap(group, limit, { point: (cell) => this.#point(cell), choose: (cell) => this.#pin(cell), key: (event) => this.#key(event) })
        const curves = makeCurves(group)
        const strip = this.#thumbnails && makeStrip(group, this.#thumbnails)
        const card = makeCard(group, this.#thumbnails, decimals, () => this.#pin(null))
        const plot = element("div", { class: strip ? "sg-plot" : "sg-plot sg-bare" }, ...(strip?.roots.flat() ?? []), ...stepNumbers(group), ...map.root, ...curves.root, ...timeLabels(group))
        const parts = [element("h3", { class: "sg-headline" }, headline(group, decimals)), makeChooser(view.texts, group.index, (step) => this.#other(step))]
        this.#body.replaceChildren(...parts, element("div", { class: "sg-main" }, plot, card.root), makeLegend(group, limit))
        const show = (/** @type {Cell | null} */ cell, /** @type {boolean} */ pinned) => {
            map.show(this.#pointed, this.#pinned)
            curves.show(cell)
            card.show(cell, pinned)
            strip?.show(rows(group, cell, decimals))
            this.#live.textContent = cell ? spoken(group, cell, decimals) : ""
        }
        return { show, map: map.map }
    }

    /** @param {Cell | null} cell */
    #point(cell) {
        if (same(cell, this.#pointed)) return
        this.#pointed = cell
        this.#soon()
    }

    /** Pin a cell; the pinned one again, or null, takes the pin away. @param {Cell | null} cell */
    #pin(cell) {
        this.#pinned = same(cell, this.#pinned) ? null : cell
        this.#soon()
    }

    /** @param {number} step */
    #other(step) {
        const count = this.#view?.texts.length ?? 0
        if (this.#group && count > 1) this.#choose((this.#group.index + step + count) % count)
    }

    /** @param {KeyboardEvent} event */
    #key(event) {
        const group = this.#group
        if (!group || event.ctrlKey || event.metaKey || event.altKey) return
        const at = this.#pointed ?? this.#pinned
        const goal = moved(at ?? { member: group.best, step: 0 }, event.key, group)
        if (goal) this.#point(at ? goal : { member: group.best, step: 0 })
        if (goal && this.#pinned) this.#pinned = this.#pointed
        else if (event.key === "Enter" || event.key === " ") this.#pin(at)
        else if (event.key === "Escape" && this.#pinned) this.#pin(null)
        else if (OTHER_PROMPT[event.key]) this.#other(OTHER_PROMPT[event.key])
        else if (!goal) return
        event.preventDefault()
        event.stopPropagation()
    }

    /** Draw the chosen cell with the next frame, however often the pointer moves until then. */
    #soon() {
        this.#frame ||= requestAnimationFrame(() => this.#update())
    }

    #update() {
        this.#frame = 0
        this.#drawn?.show(this.#pinned ?? this.#pointed, this.#pinned !== null)
    }
}

/** @param {Cell | null} a @param {Cell | null} b */
const same = (a, b) => a === b || (a !== null && b !== null && a.member === b.member && a.step === b.step)

/**
 * The two rows of thumbnails: best and worst; or the chosen member's with the best one to compare with.
 * @param {Group} group @param {Cell | null} cell @param {number} decimals
 */
function rows(group, cell, decimals) {
    const { best, worst } = group
    const row = (/** @type {number} */ member) => {
        const kind = member === best ? "best" : member === worst ? "worst" : "chosen"
        return { member, className: kind, label: `${t(`credit.${kind}`, { member: member + 1 })}\n${fixed(group.rewards[group.steps][member], decimals)}` }
    }
    return !cell ? [row(best), row(worst)] : [row(cell.member), row(cell.member === best ? worst : best)]
}

/** Why there is nothing to show. The server's own sentence, or that it has no such address. @param {unknown} error */
function sentence(error) {
    const said = error instanceof Error ? error.message : String(error)
    return /^\d{3} |fetch/.test(said) ? t("credit.unreachable", { said }) : t("credit.gone", { said })
}
