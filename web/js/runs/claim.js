// One page of this browser keeps queueing for a run; the others see that it does.

const PREFIX = "stepwise_grpo.queueing."
// Browsers let a hidden page's timers run once a minute only; a claim that old and more is of a page that is gone.
const STALE = 90 // s
const SETTLE = 100 // ms: two pages that claim at once both read back the later one

/** @typedef {{page: string, until: number, at: number}} Claim */

/**
 * @param {Storage} storage shared by the pages @param {string} page this page's own name @param {() => number} [clock] s
 */
export function createClaims(storage, page, clock = () => Date.now() / 1000) {
    /** @param {string} run @returns {Claim | null} */
    function read(run) {
        try {
            const claim = JSON.parse(storage.getItem(PREFIX + run) ?? "null")
            return claim && clock() - claim.at < STALE ? claim : null
        } catch {
            return null
        }
    }
    /** @param {string} run */
    const isMine = (run) => read(run)?.page === page
    /** @param {string} run @param {number} until */
    const renew = (run, until) => storage.setItem(PREFIX + run, JSON.stringify({ page, until, at: clock() }))
    return {
        isMine,
        /** What another page is doing for the run, or null. @param {string} run */
        other: (run) => (isMine(run) ? null : read(run)),
        renew,
        /** @param {string} run @param {number} until @returns {Promise<boolean>} */
        async take(run, until) {
            if (read(run) && !isMine(run)) return false
            renew(run, until)
            await new Promise((done) => setTimeout(done, SETTLE))
            return isMine(run)
        },
        /** @param {string} run */
        release(run) {
            if (isMine(run)) storage.removeItem(PREFIX + run)
        },
    }
}
