// Puts the widget on every Credit Visualizer of the page.

import { loadWords, nodeOutput, onCanvas, registerExtension, ask, address, changed, useStyles } from "../comfy.js"
import { CreditWidget } from "./widget.js"

const TYPE = "StepwiseGRPO_CreditVisualizer"
const PROPERTY = "stepwise_grpo_credit"
const SIZE = [740, 660]
const LEAST = { width: 460, height: 400 }

/** @typedef {import("../comfy.js").GraphNode} GraphNode */

const STORE = {
    read: (/** @type {string} */ id) => ask(`/credit/${id}`),
    picture: (/** @type {string} */ id, /** @type {number} */ group) => address(`/credit/${id}/${group}`),
}
/** @type {Set<() => void>} looks again at what the page keeps of a node's last run */
const looks = new Set()

registerExtension({
    name: "StepwiseGRPO.Credit",
    nodeCreated(/** @type {GraphNode} */ node) {
        if (node.comfyClass === TYPE) put(node)
    },
    onNodeOutputsUpdated() {
        for (const look of looks) look()
    },
})

/** @param {GraphNode} node */
function put(node) {
    useStyles("credit.css")
    const widget = new CreditWidget(STORE)
    onCanvas(widget.root)
    // Its name is not the input's: Nodes 2.0 takes a widget of an input's name for that input, socket and tooltip included.
    const dom = node.addDOMWidget("credit_view", "stepwise_grpo_credit", widget.root, { serialize: false, hideOnZoom: false, margin: 6, getMinHeight: () => LEAST.height })
    dom.serialize = false // not in the workflow file either
    dom.computeLayoutSize = () => ({ minHeight: LEAST.height, minWidth: LEAST.width })
    node.setSize([Math.max(node.size[0], SIZE[0]), Math.max(node.size[1], SIZE[1])])
    live(node, widget)
}

/**
 * Show what the node's properties name, now and whenever they are read from a file; take the id of each run into them.
 * @param {GraphNode} node @param {CreditWidget} widget
 */
function live(node, widget) {
    const restore = async () => {
        await loadWords()
        const id = node.properties[PROPERTY]
        if (typeof id === "string" && /^[0-9a-f]{16}$/.test(id)) await widget.show(id)
        else widget.empty()
    }
    const ran = (/** @type {any} */ output) => {
        const id = output?.[PROPERTY]?.[0]
        if (id && id !== node.properties[PROPERTY]) {
            node.properties[PROPERTY] = id
            changed()
        }
        if (id) restore()
        else if (output?.text?.[0]) loadWords().then(() => widget.say(output.text[0]))
    }
    const look = () => node.graph && ran(nodeOutput(node))
    chain(node, "onExecuted", ran)
    chain(node, "onConfigure", restore)
    chain(node, "onAdded", () => (looks.add(look), restore()))
    chain(node, "onRemoved", () => (looks.delete(look), widget.close()))
    restore()
}

/**
 * Call `after` with the same arguments whenever the node's own `name` is called.
 * @param {GraphNode} node @param {string} name @param {(...args: any[]) => unknown} after
 */
function chain(node, name, after) {
    const before = node[name]
    node[name] = function (/** @type {any[]} */ ...args) {
        const result = before?.apply(this, args)
        after(...args)
        return result
    }
}
