// The texts of a language put on a node's definition and on a node. Names of inputs and outputs stay: workflows hold them.

/** @typedef {{name?: string, tooltip?: string}} Part */
/** @typedef {{display_name?: string, description?: string, inputs?: {[id: string]: Part}, outputs?: {[place: string]: Part}}} Texts one node of nodeDefs.json */

/**
 * Translate what /object_info says about a node, in place.
 * @param {any} def @param {Texts} texts @param {{[category: string]: string}} [categories]
 */
export function translateDef(def, texts, categories = {}) {
    def.display_name = texts.display_name ?? def.display_name
    def.description = texts.description ?? def.description
    def.category = categories[def.category] ?? def.category
    for (const [id, spec] of Object.entries({ ...def.input?.required, ...def.input?.optional })) {
        const tooltip = texts.inputs?.[id]?.tooltip
        if (tooltip) spec[1] = { ...spec[1], tooltip }
    }
    def.output_tooltips = def.output?.map((/** @type {string} */ _type, /** @type {number} */ place) => texts.outputs?.[place]?.tooltip ?? def.output_tooltips?.[place])
}

/**
 * Translate what a new node shows: its widgets and sockets. An output called as its type keeps the page's own word for the type.
 * @param {any} node @param {Texts} texts
 */
export function translateNode(node, texts) {
    for (const widget of node.widgets ?? []) widget.label = texts.inputs?.[widget.name]?.name ?? widget.label
    for (const input of node.inputs ?? []) input.localized_name = texts.inputs?.[input.name]?.name ?? input.localized_name
    for (const [place, output] of Object.entries(node.outputs ?? {})) {
        if (output.name !== output.type) output.localized_name = texts.outputs?.[place]?.name ?? output.localized_name
    }
}
