// What the widget says in words.

import { t } from "../words.js"

/** @typedef {import("./view.js").Group} Group */
/** @typedef {import("./axis.js").Cell} Cell */

/**
 * Decimals that show a gain of the size of `limit` with two digits.
 * @param {number} limit
 */
export const decimalsFor = (limit) => Math.max(0, Math.min(6, 1 - Math.floor(Math.log10(limit))))

/**
 * @param {number | null | undefined} value @param {number} decimals
 */
export function fixed(value, decimals) {
    if (value === null || value === undefined) return "–"
    const text = Math.abs(value).toFixed(decimals)
    return value < 0 && Number(text) !== 0 ? `−${text}` : text
}

/** @param {number | null | undefined} value @param {number} decimals */
export const withSign = (value, decimals) => (value && value > 0 && Number(value.toFixed(decimals)) !== 0 ? "+" : "") + fixed(value, decimals)

/**
 * What an artist reads first.
 * @param {Group} group @param {number} decimals
 */
export function headline(group, decimals) {
    const { best, worst, earner, loser } = group
    const final = group.rewards[group.steps]
    const ends = { best: best + 1, bestReward: fixed(final[best], decimals), worst: worst + 1, worstReward: fixed(final[worst], decimals) }
    if (!group.looked || earner === null || loser === null) return t("credit.headline.uniform", ends)
    if (group.alike) return t("credit.headline.alike", { reward: fixed(final[best], decimals) })
    const step = { step: earner.step + 1, steps: group.steps, gain: withSign(earner.gain, decimals) }
    const lost = (group.sums[loser] ?? 0) < 0
    const member = { member: loser + 1, ...sumOf(group, loser, decimals), sum: withSign(shownGain(group, loser, decimals), decimals) }
    return `${t(earner.gain > 0 ? "credit.headline.earned" : "credit.headline.none", step)} ${t(lost ? "credit.headline.lost" : "credit.headline.least", member)}`
}

/**
 * start, gains and final of a member as texts that add up as they are read.
 * @param {Group} group @param {number} member @param {number} decimals
 */
export function sumOf(group, member, decimals) {
    const start = group.rewards[0][member]
    const final = group.rewards[group.steps][member]
    return { start: fixed(start, decimals), gains: fixed(shownGain(group, member, decimals), decimals), final: fixed(final, decimals) }
}

/** Final minus start as they are shown. @param {Group} group @param {number} member @param {number} decimals */
function shownGain(group, member, decimals) {
    const start = group.rewards[0][member]
    const final = group.rewards[group.steps][member]
    return start === null || final === null ? null : Number(final.toFixed(decimals)) - Number(start.toFixed(decimals))
}

/**
 * "Picture 5: start 0.62 + gains 0.31 = final 0.93", or what is known without previews.
 * @param {Group} group @param {number} member @param {number} decimals
 */
export function sumLine(group, member, decimals) {
    return t(group.looked ? "credit.sum" : "credit.sumUniform", { member: member + 1, ...sumOf(group, member, decimals) })
}

/**
 * The facts of a cell: [name, text] in the order they are shown.
 * @param {Group} group @param {Cell} cell @param {number} decimals @returns {[string, string][]}
 */
export function facts(group, { member, step }, decimals) {
    const arrow = (/** @type {string} */ a, /** @type {string} */ b) => `${a} → ${b}`
    const reward = (/** @type {number} */ k) => fixed(group.rewards[k][member], decimals)
    /** @type {[string, string][]} */
    const looked = [
        [t("credit.fact.reward"), arrow(reward(step), reward(step + 1))],
        [t("credit.fact.gain"), withSign(group.gains[step][member], decimals)],
    ]
    return [
        [t("credit.fact.time"), arrow(fixed(group.times[step], 2), fixed(group.times[step + 1], 2))],
        ...(group.looked ? looked : []),
        [t("credit.fact.advantage"), withSign(group.advantages[step][member], 2)],
        [t("credit.fact.random"), t(group.stochastic.has(step) ? "credit.fact.yes" : "credit.fact.no")],
    ]
}

/** @param {Group} group @param {Cell} cell */
export const cellName = (group, { member, step }) => t("credit.cell", { member: member + 1, step: step + 1, steps: group.steps })

/**
 * One sentence for a screen reader.
 * @param {Group} group @param {Cell} cell @param {number} decimals
 */
export const spoken = (group, cell, decimals) => [cellName(group, cell), ...facts(group, cell, decimals).map(([name, text]) => `${name} ${text}`)].join(", ")
