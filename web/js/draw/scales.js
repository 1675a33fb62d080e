// From numbers to places and to text.

/**
 * A linear map from [low, high] to [from, to]; one value alone lands in the middle.
 * @param {number} low @param {number} high @param {number} from @param {number} to
 * @returns {(value: number) => number}
 */
export const linear = (low, high, from, to) =>
    high === low ? () => (from + to) / 2 : (value) => from + ((value - low) / (high - low)) * (to - from)

/**
 * [lowest, highest] of the finite numbers; undefined when there is none.
 * @param {Iterable<number | null | undefined>} values @returns {[number, number] | undefined}
 */
export function extent(values) {
    let low = Infinity
    let high = -Infinity
    for (const value of values) {
        if (typeof value !== "number" || !Number.isFinite(value)) continue
        low = Math.min(low, value)
        high = Math.max(high, value)
    }
    return low > high ? undefined : [low, high]
}

/**
 * About `count` round numbers within [low, high].
 * @param {number} low @param {number} high @param {number} count
 */
export function ticks(low, high, count) {
    if (!(high > low)) return [low]
    const rough = (high - low) / Math.max(count, 1)
    const power = 10 ** Math.floor(Math.log10(rough))
    const step = ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10) * power
    const result = []
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) result.push(Number((i * step).toPrecision(12)))
    return result
}

/**
 * A number for people: three digits, no more than needed.
 * @param {number | null | undefined} value
 */
export function shown(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–"
    const size = Math.abs(value)
    if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1).replace("e+", "e").replace("-", "−")
    return String(Number(value.toPrecision(3))).replace("-", "−")
}
