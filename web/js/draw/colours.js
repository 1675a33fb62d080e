// A scale of colours between given stops.

/** @typedef {[number, number, number]} Colour - red, green, blue, 0 to 255 */

/**
 * The colour at `share` of the way along evenly spaced stops; beyond the ends it stays the end's.
 * @param {Colour[]} stops @param {number} share 0 to 1 @returns {Colour}
 */
export function mixed(stops, share) {
    const place = Math.max(0, Math.min(1, share)) * (stops.length - 1)
    const below = Math.min(Math.floor(place), stops.length - 2)
    const mix = (/** @type {number} */ channel) => Math.round(stops[below][channel] + (stops[below + 1][channel] - stops[below][channel]) * (place - below))
    return [mix(0), mix(1), mix(2)]
}

/** The stops as a CSS background from left to right. @param {Colour[]} stops */
export const ramp = (stops) => `linear-gradient(to right, ${stops.map((colour) => `rgb(${colour.join(" ")})`).join(", ")})`
