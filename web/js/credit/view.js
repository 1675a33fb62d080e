// What a stored view tells: gains, sums, best and worst picture, the step that earned most. Data to data.

/** @typedef {(number | null)[][]} Table - first the state or step, then the row */
/**
 * view.json as the server keeps it. Rows are prompt-major: row = group * group_size + member.
 * @typedef {object} View
 * @property {string[]} texts @property {number} group_size @property {number[]} times K + 1, falling from 1 to 0
 * @property {number[]} stochastic @property {string} scheme @property {string} law @property {number} eta @property {string} reward
 * @property {Table} rewards (K + 1) x rows; null where nobody looked @property {Table} advantages K x rows
 * @property {{width: number, height: number} | null} thumbnails px of a tile
 */
/**
 * One prompt of a view. Members, steps and states count from 0.
 * @typedef {object} Group
 * @property {number} index @property {string} text @property {number} size members @property {number} steps
 * @property {number[]} times @property {Set<number>} stochastic
 * @property {Table} rewards (K + 1) x members @property {Table} gains K x members @property {Table} advantages
 * @property {Table} values K x members, what the map shows
 * @property {boolean} looked every state has a reward, so that there are gains
 * @property {(number | null)[]} sums gain of each member from start to end
 * @property {number} best @property {number} worst members, by the finished picture
 * @property {{step: number, gain: number} | null} earner the step that earned most, on average over the group
 * @property {number | null} loser the member with the smallest sum of gains
 * @property {boolean} alike all members earned the same in every step
 */

export const FORMAT = 1
const ALIKE = 1e-4 // as the trainer's zero-variance groups

/** @param {number | null | undefined} value @returns {value is number} */
const known = (value) => typeof value === "number"

/** @param {View} view */
export const stepsOf = (view) => view.times.length - 1

/**
 * Whether every state was looked at: only then has each step a gain.
 * @param {View} view
 */
export const lookedAt = (view) => view.rewards.every((row) => row.every(known))

/**
 * rewards after minus rewards before, K x rows.
 * @param {Table} rewards @returns {Table}
 */
export const gainsOf = (rewards) =>
    rewards.slice(1).map((row, k) =>
        row.map((after, i) => {
            const before = rewards[k][i]
            return known(after) && known(before) ? after - before : null
        }),
    )

/**
 * The colours' end, one for all prompts and symmetric around 0; the loudest two hundredths are cut off, as in the figure.
 * @param {View} view
 */
export function colourLimit(view) {
    const values = lookedAt(view) ? gainsOf(view.rewards) : view.advantages
    const sizes = values.flat().filter(known).map(Math.abs).sort((a, b) => a - b)
    const place = 0.98 * (sizes.length - 1)
    const below = sizes[Math.floor(place)] ?? 0
    const above = sizes[Math.ceil(place)] ?? 0
    return Math.max(below + (above - below) * (place % 1 || 0), 1e-6)
}

/**
 * How large the differences between rewards are: what decides how many digits of them are shown.
 * @param {View} view
 */
export function rewardScale(view) {
    if (lookedAt(view)) return colourLimit(view)
    return Math.max(spread(view.rewards.flat()) / 2, 1e-6)
}

/**
 * The prompt whose finished pictures differ most: the one to look at first.
 * @param {View} view
 */
export function mostTelling(view) {
    const finals = view.texts.map((_, group) => deviation(members(view, group, view.rewards.at(-1) ?? []).filter(known)))
    return finals.indexOf(Math.max(...finals))
}

/** @param {number[]} values population's standard deviation; 0 of none */
function deviation(values) {
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length
    return Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length) || 0
}

/** @template T @param {View} view @param {number} group @param {T[]} row */
const members = (view, group, row) => row.slice(group * view.group_size, (group + 1) * view.group_size)

/**
 * Everything the widget shows of one prompt.
 * @param {View} view @param {number} index @returns {Group}
 */
export function groupOf(view, index) {
    const cut = (/** @type {Table} */ table) => table.map((row) => members(view, index, row))
    const rewards = cut(view.rewards)
    const gains = gainsOf(rewards)
    const advantages = cut(view.advantages)
    const looked = lookedAt(view)
    const final = rewards.at(-1) ?? []
    const sums = final.map((value, i) => (known(value) && known(rewards[0][i]) ? value - /** @type {number} */ (rewards[0][i]) : null))
    return {
        ...{ index, text: view.texts[index], size: view.group_size, steps: stepsOf(view), times: view.times, stochastic: new Set(view.stochastic) },
        ...{ rewards, gains, advantages, values: looked ? gains : advantages, looked, sums },
        ...{ best: largest(final), worst: largest(final.map((value) => (known(value) ? -value : null))) },
        ...{ earner: looked ? earnerOf(gains) : null, loser: looked ? largest(sums.map((sum) => (known(sum) ? -sum : null))) : null },
        alike: looked && gains.every((row) => spread(row) < ALIKE) && spread(final) < ALIKE,
    }
}

/** @param {(number | null)[]} values the first place of the largest number */
function largest(values) {
    const numbers = values.map((value) => value ?? -Infinity)
    return numbers.indexOf(Math.max(...numbers))
}

/** @param {(number | null)[]} values */
function spread(values) {
    const numbers = values.filter(known)
    return Math.max(...numbers) - Math.min(...numbers)
}

/** @param {Table} gains */
function earnerOf(gains) {
    const means = gains.map(meanOf)
    const step = largest(means)
    return { step, gain: means[step] ?? 0 }
}

/**
 * Mean of the numbers; null of none.
 * @param {(number | null)[]} values
 */
export function meanOf(values) {
    const numbers = values.filter(known)
    return numbers.length ? numbers.reduce((sum, value) => sum + value, 0) / numbers.length : null
}

/**
 * What a damaged or newer file lacks, in a word; undefined when the view can be shown.
 * @param {any} view @returns {string | undefined}
 */
export function lacking(view) {
    if (view?.format !== FORMAT) return "format"
    const rows = view.texts?.length * view.group_size
    const fits = (/** @type {any} */ table, /** @type {number} */ length) => Array.isArray(table) && table.length === length && table.every((row) => row.length === rows)
    if (!(rows > 0) || !(view.times?.length > 1) || !Array.isArray(view.stochastic)) return "times"
    if (!fits(view.rewards, view.times.length)) return "rewards"
    return fits(view.advantages, view.times.length - 1) ? undefined : "advantages"
}
