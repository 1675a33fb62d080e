// From events to what the charts draw. Data in, data out.

/** @typedef {import("./store.js").RunEvent} RunEvent */
/** @typedef {import("./store.js").Look} Look */

/**
 * @typedef {object} Series
 * @property {number[]} versions the shared x, rising
 * @property {(number | null)[]} reward @property {(number | null)[]} spread @property {(number | null)[]} heldOut
 * @property {(number | null)[]} kl @property {(number | null)[]} clip
 * @property {(number | null)[][]} gains [version][step], empty where nobody recorded it
 * @property {{x: number, to: number}[]} backs where the run went back
 * @property {boolean} klOff KL was 0 throughout: beta is 0
 */

/** @param {RunEvent[]} events oldest first @param {Look[]} looks @returns {Series} */
export function seriesOf(events, looks) {
    const heldOut = newestSeries(looks)
    const known = new Map(events.map((event) => [event.version, event]))
    const versions = [...new Set([...events, ...heldOut.filter((look) => look.version === 0 || known.has(look.version))].map((entry) => entry.version))].sort((a, b) => a - b)
    const look = new Map(heldOut.map((entry) => [entry.version, entry.reward_mean]))
    /** @param {string} metric */
    const of = (metric) => versions.map((version) => number(known.get(version)?.[metric]))
    const kl = of("kl")
    return {
        versions,
        reward: of("reward_mean"),
        spread: of("reward_std"),
        heldOut: versions.map((version) => number(look.get(version))),
        kl,
        clip: of("clip_fraction"),
        gains: versions.map((version) => steps(known.get(version)?.gain_by_step)),
        backs: events.flatMap((event) => (typeof event.back_to === "number" ? [{ x: event.version, to: event.back_to }] : [])),
        klOff: kl.some((value) => value === 0) && kl.every((value) => value === null || value === 0),
    }
}

/**
 * Held-out rewards of one series only: others have other prompts, seeds or rewards and cannot be compared.
 * @param {Look[]} looks
 */
const newestSeries = (looks) => looks.filter((look) => look.series === looks.at(-1)?.series && typeof look.reward_mean === "number")

/** @param {any} value @returns {number | null} */
const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null)

/** @param {any} list @returns {(number | null)[]} */
const steps = (list) => (Array.isArray(list) ? list.map(number) : [])

/**
 * The heat map's cells: at most `most` columns, each the mean over neighbouring versions; rows are steps.
 * @param {(number | null)[][]} gains [version][step] @param {number} most
 */
export function heatCells(gains, most) {
    const rows = Math.max(0, ...gains.map((column) => column.length))
    const columns = Math.min(gains.length, Math.max(1, Math.floor(most)))
    /** @param {number} c @param {number} k */
    const cell = (c, k) => {
        const part = gains.slice(Math.floor((c * gains.length) / columns), Math.floor(((c + 1) * gains.length) / columns))
        const values = part.map((column) => column[k]).filter((value) => typeof value === "number")
        return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null
    }
    const cells = Array.from({ length: columns }, (_, c) => Array.from({ length: rows }, (_, k) => cell(c, k)))
    const highest = Math.max(0, ...cells.flat().map((value) => value ?? 0))
    return { rows, columns, cells, highest }
}

/**
 * The step that earned most over all versions, and its mean |gain|; null where nothing was recorded.
 * @param {(number | null)[][]} gains
 */
export function strongestStep(gains) {
    const { rows, cells } = heatCells(gains, 1)
    /** @type {{step: number, gain: number} | null} */
    let best = null
    for (let k = 0; k < rows; k++) {
        const gain = cells[0][k]
        if (gain !== null && gain > (best?.gain ?? -1)) best = { step: k, gain }
    }
    return best
}

/**
 * The place of the value nearest to `x` in a rising list; -1 when it is empty.
 * @param {number[]} xs @param {number} x
 */
export function nearest(xs, x) {
    let best = xs.length ? 0 : -1
    for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) <= Math.abs(xs[best] - x)) best = i
    return best
}
