// The page's texts. They lie in locales/<language>/main.json below "stepwiseGrpo".

/** @typedef {{[key: string]: string | Words}} Words */

/** @type {Words[]} */
let languages = []

/**
 * Use these texts: English, and those of the artist's language, which may lack some.
 * @param {Words | undefined} english @param {Words} [own]
 */
export function useWords(english, own) {
    languages = [own, english].filter((words) => words !== undefined)
}

/**
 * The text for a key such as "runs.pause", with {name} replaced by values.name. A text nobody has is its key.
 * @param {string} key @param {{[name: string]: string | number}} [values]
 */
export function t(key, values = {}) {
    const text = languages.map((words) => find(words, key.split("."))).find((found) => found !== undefined) ?? key
    return text.replace(/\{(\w+)\}/g, (all, name) => (name in values ? String(values[name]) : all))
}

/** @param {Words} words @param {string[]} path @returns {string | undefined} */
function find(words, path) {
    /** @type {string | Words | undefined} */
    let found = words
    for (const part of path) found = typeof found === "object" ? found[part] : undefined
    return typeof found === "string" ? found : undefined
}
