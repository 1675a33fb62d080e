// One plain sentence about a run, from its events. Data in, data out.

/** @typedef {import("./store.js").RunEvent} RunEvent */
/** @typedef {import("./store.js").Look} Look */
/** @typedef {{level: "good" | "look" | "bad" | "waiting", key: string, values?: {[name: string]: number}, back?: number}} Health - `back`: a version to go back to */

// Rewards of single iterations jump, because each has other prompts: fewer than this say nothing about a direction.
export const ENOUGH = 6
// A run that has not moved after so many deserves a look; the demo needs about ten before its rise stands out.
export const PATIENCE = 12
// A trend counts when it is this many standard errors away from none: about 1 in 20 by chance.
export const SURE = 2
// The direction is that of so many newest versions: older ones tell of another time.
export const RECENT = 20
// Rewards that spread less than this within an iteration cannot be told apart; the credit is exactly zero then (the trainer's own limit).
export const NO_SPREAD = 1e-4
// A spread this small beside the first ones' means that pictures or scores have become nearly all alike.
export const LITTLE_SPREAD = 0.2
// Above this share of steps at the clip limit most of the update is cut off; NOTATION.md calls 0 to 0.5 healthy.
export const MUCH_CLIPPED = 0.5
// Mean KL per element so large that the pictures are no longer those of the base model: 20 to 60 times that of the demo after a good run (0.0008 to 0.0015).
export const FAR = 0.05
// Groups without any difference: more than a third of the groups that are possible at least (two pictures each) is worth a word.
export const MANY_FLAT_GROUPS = 1 / 3

/**
 * @param {RunEvent[]} events oldest first @param {Look[]} [looks] @returns {Health}
 */
export function healthOf(events, looks = []) {
    const lessons = sinceBack(events)
    if (!lessons.length) return events.length ? { level: "waiting", key: "tooFew", values: { count: 0, enough: ENOUGH } } : { level: "waiting", key: "none" }
    return spreadGone(lessons) ?? hacked(lessons, looks) ?? tooFar(lessons) ?? clipped(lessons) ?? flatGroups(lessons) ?? direction(lessons)
}

/**
 * The lessons since the run last went back: what came before is another story.
 * @param {RunEvent[]} events
 */
function sinceBack(events) {
    const back = events.findLastIndex((event) => typeof event.back_to === "number")
    return events.slice(back + 1).filter((event) => typeof event.reward_mean === "number")
}

/** @param {RunEvent[]} lessons @param {string} metric */
const numbers = (lessons, metric) => lessons.map((event) => event[metric]).filter((value) => typeof value === "number")

/** @param {number[]} values */
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length

/** @param {RunEvent[]} lessons @returns {Health | null} */
function spreadGone(lessons) {
    const spread = numbers(lessons, "reward_std")
    const newest = spread.slice(-3)
    if (newest.length && newest.every((value) => value < NO_SPREAD)) return { level: "bad", key: "allAlike" }
    if (spread.length < ENOUGH) return null
    const first = mean(spread.slice(0, 3))
    if (mean(newest) >= LITTLE_SPREAD * first) return null
    const grown = numbers(lessons, "reward_mean")
    const [before, now] = [mean(grown.slice(0, 3)), mean(grown.slice(-3))]
    return { level: now > before ? "good" : "look", key: now > before ? "littleLeft" : "littleSpread", values: { before, now } }
}

/**
 * The score in training rises while that of the held-out pictures falls: what rises is then not what was meant.
 * @param {RunEvent[]} lessons @param {Look[]} looks @returns {Health | null}
 */
function hacked(lessons, looks) {
    const last = looks.at(-1)
    const same = looks.filter((look) => look.series === last?.series && typeof look.reward_mean === "number" && look.version >= lessons[0].version)
    if (!last || same.length < 3) return null
    const best = same.reduce((a, b) => (value(b) > value(a) ? b : a))
    const newest = same[same.length - 1]
    const during = numbers(lessons.filter((event) => event.version >= best.version), "reward_mean")
    if (best.version === newest.version || during.length < 3 || !fell(best, newest) || mean(during.slice(-2)) <= mean(during.slice(0, 2))) return null
    return { level: "bad", key: "hacked", values: { before: value(best), now: value(newest), version: best.version }, back: best.version }
}

/** @param {Look} look */
const value = (look) => /** @type {number} */ (look.reward_mean)

/**
 * Whether the same held-out pictures score lower, beyond what chance explains; a picture alone must lose a tenth.
 * @param {Look} best @param {Look} newest
 */
function fell(best, newest) {
    const losses = (best.rewards ?? []).flatMap((reward, i) => {
        const now = newest.rewards?.[i]
        return typeof reward === "number" && typeof now === "number" ? [reward - now] : []
    })
    if (losses.length < 2) return value(best) - value(newest) > Math.abs(value(best)) / 10
    const loss = mean(losses)
    const error = Math.sqrt(mean(losses.map((one) => (one - loss) ** 2)) / (losses.length - 1))
    return loss > SURE * error && loss > NO_SPREAD
}

/** @param {RunEvent[]} lessons @returns {Health | null} */
function tooFar(lessons) {
    const kl = numbers(lessons, "kl").slice(-3)
    return kl.length && mean(kl) > FAR ? { level: "look", key: "far", values: { kl: mean(kl) } } : null
}

/** @param {RunEvent[]} lessons @returns {Health | null} */
function clipped(lessons) {
    const share = numbers(lessons, "clip_fraction").slice(-3)
    return share.length && mean(share) > MUCH_CLIPPED ? { level: "look", key: "clipped", values: { percent: Math.round(100 * mean(share)) } } : null
}

/** @param {RunEvent[]} lessons @returns {Health | null} */
function flatGroups(lessons) {
    const shares = lessons.slice(-3).map((event) => event.zero_variance_groups / (event.pictures / 2)).filter(Number.isFinite)
    return shares.length && mean(shares) > MANY_FLAT_GROUPS ? { level: "look", key: "flatGroups" } : null
}

/** @param {RunEvent[]} lessons @returns {Health} */
function direction(lessons) {
    const rewards = numbers(lessons, "reward_mean")
    if (rewards.length < ENOUGH) return { level: "waiting", key: "tooFew", values: { count: rewards.length, enough: ENOUGH } }
    const recent = trend(rewards.slice(-RECENT))
    const values = { before: mean(rewards.slice(0, 3)), now: mean(rewards.slice(-3)) }
    if (recent > SURE) return { level: "good", key: "rising", values }
    if (recent < -SURE) return { level: "bad", key: "falling", values }
    if (trend(rewards) > SURE) return { level: "good", key: "settled", values }
    return { level: rewards.length < PATIENCE ? "waiting" : "look", key: "flat", values }
}

/**
 * The slope of a straight line through the values, in its standard errors.
 * @param {number[]} values at least three
 */
export function trend(values) {
    const n = values.length
    const [mx, my] = [(n - 1) / 2, mean(values)]
    const sxx = values.reduce((sum, _, i) => sum + (i - mx) ** 2, 0)
    const slope = values.reduce((sum, y, i) => sum + (i - mx) * (y - my), 0) / sxx
    const rest = values.reduce((sum, y, i) => sum + (y - my - slope * (i - mx)) ** 2, 0)
    const error = Math.sqrt(rest / (n - 2) / sxx)
    if (error > 1e-9 * Math.abs(slope)) return slope / error
    return slope === 0 ? 0 : Math.sign(slope) * Infinity
}
