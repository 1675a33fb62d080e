// Making elements. Text always goes in as text, never as HTML.

/** @typedef {{[name: string]: string | number | boolean | undefined | ((event: any) => void)}} Attributes */
/** @typedef {Node | string | null | undefined} Child */

const SVG = "http://www.w3.org/2000/svg"

/**
 * An HTML element. A function is a listener (`click`), true an attribute without value, undefined and false none.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Attributes} [attributes] @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export const element = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children)

/**
 * An SVG element.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag @param {Attributes} [attributes] @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export const svg = (tag, attributes = {}, ...children) =>
    fill(/** @type {SVGElementTagNameMap[Tag]} */ (document.createElementNS(SVG, tag)), attributes, children)

/**
 * @template {Element} E
 * @param {E} made @param {Attributes} attributes @param {Child[]} children
 */
function fill(made, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
        if (typeof value === "function") made.addEventListener(name, value)
        else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value))
    }
    made.append(...children.filter((child) => child !== null && child !== undefined))
    return made
}
