// One axis for thumbnails, map and curves: state k lies at x = k, step k between k and k + 1. Places are percent of the width.

export const SHOWN = 12 // thumbnails in a row, labels on the axis

/**
 * Which states get a thumbnail and a label: all, or so many that they fit, always with the finished picture.
 * @param {number} steps
 */
export function shownStates(steps) {
    const stride = strideOf(steps)
    const states = []
    for (let k = steps; k >= 0; k -= stride) states.unshift(k)
    return states
}

/** @param {number} steps */
export const strideOf = (steps) => Math.ceil((steps + 1) / SHOWN)

/**
 * Percent of the width at which x lies. Half a thumbnail is free at both ends.
 * @param {number} x @param {number} steps
 */
export function placeOf(x, steps) {
    const margin = strideOf(steps) / 2
    return (100 * (x + margin)) / (steps + 2 * margin)
}

/**
 * Places moved apart so that no two are closer than `least`, within [0, 100]; order kept.
 * @param {number[]} places @param {number} least
 */
export function apart(places, least) {
    const order = places.map((_, i) => i).sort((a, b) => places[a] - places[b])
    const result = [...places]
    order.forEach((i, rank) => {
        if (rank) result[i] = Math.max(result[i], result[order[rank - 1]] + least)
    })
    let top = 100 - least / 2
    for (const i of order.reverse()) {
        result[i] = Math.min(result[i], top)
        top = result[i] - least
    }
    return result
}

/** @typedef {{member: number, step: number}} Cell */

/**
 * The cell a key leads to; undefined for a key that moves nothing.
 * @param {Cell} cell @param {string} key @param {{size: number, steps: number}} group @returns {Cell | undefined}
 */
export function moved({ member, step }, key, { size, steps }) {
    const places = /** @type {{[key: string]: [number, number]}} */ ({
        ...{ ArrowLeft: [member, step - 1], ArrowRight: [member, step + 1], ArrowUp: [member - 1, step], ArrowDown: [member + 1, step] },
        ...{ Home: [member, 0], End: [member, steps - 1] },
    })
    const place = Object.hasOwn(places, key) ? places[key] : undefined
    return place && { member: Math.max(0, Math.min(size - 1, place[0])), step: Math.max(0, Math.min(steps - 1, place[1])) }
}

/**
 * The cell at a fraction of the map's width and height.
 * @param {number} x @param {number} y @param {{size: number, steps: number}} group @returns {Cell}
 */
export const cellAt = (x, y, { size, steps }) => ({
    member: Math.max(0, Math.min(size - 1, Math.floor(y * size))),
    step: Math.max(0, Math.min(steps - 1, Math.floor(x * steps))),
})
