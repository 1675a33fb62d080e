// The clean estimates on their way from noise to picture: two rows above the map.

import { element } from "../draw/elements.js"
import { placeOf, shownStates, strideOf } from "./axis.js"

/** @typedef {import("./view.js").Group} Group */
/** @typedef {import("./thumbnails.js").Thumbnails} Thumbnails */
/** @typedef {{member: number, label: string, className: string}} Row */

/**
 * The strip of a group; `show` fills its rows.
 * @param {Group} group @param {Thumbnails} thumbnails
 */
export function makeStrip(group, thumbnails) {
    const states = shownStates(group.steps)
    const rows = [makeRow(group, states, thumbnails), makeRow(group, states, thumbnails)]
    /** @param {Row[]} wanted */
    const show = (wanted) => rows.forEach((row, i) => row.show(wanted[i]))
    return { roots: rows.map((row) => row.root), show }
}

/** @param {Group} group @param {number[]} states @param {Thumbnails} thumbnails */
function makeRow(group, states, thumbnails) {
    const ratio = thumbnails.tile.width / thumbnails.tile.height
    const width = (100 * strideOf(group.steps)) / (group.steps + strideOf(group.steps))
    const tiles = states.map(() => element("canvas", { class: "sg-tile" }))
    const slots = states.map((k, i) => element("div", { class: "sg-slot", style: `left: ${placeOf(k, group.steps) - width / 2}%; width: ${width}%` }, tiles[i]))
    const label = element("div", { class: "sg-side" })
    const area = element("div", { class: "sg-strip", style: `--ratio: ${ratio}; --slots: ${100 / width}` }, ...slots)
    let shown = ""
    /** @param {Row} row */
    const show = (row) => {
        label.textContent = row.label
        for (const part of [label, area]) part.dataset.kind = row.className
        const key = `${row.member} ${thumbnails.ready}`
        if (shown === key) return
        shown = key
        states.forEach((k, i) => {
            tiles[i].style.visibility = group.rewards[k][row.member] === null ? "hidden" : ""
            thumbnails.draw(tiles[i], row.member, k)
        })
    }
    return { root: [label, area], show }
}
