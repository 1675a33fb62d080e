// Which version the Live LoRA nodes of the open workflow use, and setting it. Works on nodes; knows nothing of the page.

/** @typedef {any} GraphNode - a node on the canvas */

export const NEWEST = -1

/**
 * The run that a node's run_name names, or null where a link decides it.
 * @param {GraphNode} node
 */
export const runOf = (node) => (isLinked(node, "run_name") ? null : nameOf(widget(node, "run_name")?.value))

/** As the server writes names. @param {any} value */
const nameOf = (value) => String(value ?? "").normalize("NFC")

/** Neither muted nor bypassed. @param {GraphNode} node */
export const isActive = (node) => node.mode !== 2 && node.mode !== 4

/** @param {GraphNode} node @param {string} name */
export const widget = (node, name) => node.widgets?.find((/** @type {any} */ one) => one.name === name)

/** @param {GraphNode} node @param {string} name */
export const isLinked = (node, name) => node.inputs?.some((/** @type {any} */ input) => input.widget?.name === name && input.link !== null && input.link !== undefined) ?? false

/**
 * Live LoRA nodes of a run: how many, and the versions they are pinned to.
 * @param {GraphNode[]} nodes @param {string} run
 */
export function pinned(nodes, run) {
    const of = nodes.filter((node) => runOf(node) === run)
    const versions = of.filter((node) => !isLinked(node, "version")).map((node) => Number(widget(node, "version")?.value))
    return { nodes: of.length, versions: [...new Set(versions.filter((version) => Number.isFinite(version) && version !== NEWEST))].sort((a, b) => a - b) }
}

/**
 * Set the version of a run's Live LoRA nodes: how many were set, how many take theirs from a link, and how many have another run.
 * @param {GraphNode[]} nodes @param {string} run @param {number} version
 */
export function pin(nodes, run, version) {
    const of = nodes.filter((node) => runOf(node) === run)
    const free = of.filter((node) => !isLinked(node, "version") && widget(node, "version"))
    for (const node of free) {
        const field = widget(node, "version")
        field.value = version
        field.callback?.(version)
    }
    return { set: free.length, linked: of.length - free.length, others: nodes.length - of.length }
}
