// The map's colours: blue = made it better, orange-red = made it worse, pale = nothing. Lightness falls to both ends, so that
// they are told apart with every common colour blindness; pale lies in the middle on dark and on light pages alike.

import { mixed, ramp } from "../draw/colours.js"

/** @type {import("../draw/colours.js").Colour[]} from -limit to +limit, evenly spaced */
const STOPS = [
    [122, 30, 8],
    [201, 74, 28],
    [240, 154, 104],
    [241, 238, 232],
    [124, 178, 222],
    [40, 116, 186],
    [10, 56, 120],
]

/**
 * The colour of a value; beyond the limit it stays the end's.
 * @param {number | null} value @param {number} limit above 0
 */
export const colourOf = (value, limit) => mixed(STOPS, ((value ?? 0) / limit + 1) / 2)

/** The legend's bar as a CSS background. */
export const gradient = () => ramp(STOPS)

/**
 * The map as pixels, a row a member and a column a step: RGBA for ImageData.
 * @param {(number | null)[][]} values steps x members @param {number} limit
 */
export function pixels(values, limit) {
    const steps = values.length
    const size = values[0]?.length ?? 0
    const data = new Uint8ClampedArray(4 * steps * size)
    values.forEach((row, k) => row.forEach((value, i) => data.set([...colourOf(value, limit), 255], 4 * (i * steps + k))))
    return data
}
