// Our nodes in the page's language. Newer pages do it by themselves; those of 2025 lose what packs bring when they fetch a language.

import { language, packTexts, registerExtension } from "../comfy.js"
import { translateDef, translateNode } from "./translate.js"

/** @type {{[language: string]: any}} */
let texts = {}

/** @param {string} id of a node @returns {import("./translate.js").Texts | undefined} nothing in English, which the nodes speak anyway */
const textsOf = (id) => (id.startsWith("StepwiseGRPO_") && language() !== "en" ? texts[language()]?.nodeDefs?.[id] : undefined)

registerExtension({
    name: "StepwiseGRPO.Languages",
    async init() {
        texts = await packTexts()
    },
    beforeRegisterNodeDef(_type, def) {
        const own = textsOf(def.name)
        if (own) translateDef(def, own, texts[language()].nodeCategories)
    },
    nodeCreated(node) {
        const own = textsOf(node.comfyClass ?? "")
        if (own) translateNode(node, own)
    },
})
