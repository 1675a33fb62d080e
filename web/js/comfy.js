// The only module that touches ComfyUI's page. Everything else gets what it needs from here, so that a change of the page is met in one place.

import { app } from "../../../scripts/app.js"
import { api } from "../../../scripts/api.js"
import { useWords } from "./words.js"

const ROOT = "/stepwise_grpo"

/** @typedef {import("@comfyorg/comfyui-frontend-types").ComfyExtension} Extension */
/** @typedef {any} GraphNode - a node on the canvas; its class is not exported by the page's types */

/** @param {Extension} extension */
export const registerExtension = (extension) => app.registerExtension(extension)

/** @param {Parameters<typeof app.extensionManager.registerSidebarTab>[0]} tab */
export const registerSidebarTab = (tab) => app.extensionManager.registerSidebarTab(tab)

/**
 * Call `listener` with the data of every message `name` from the server; returns what ends it.
 * @param {string} name @param {(data: any) => void} listener
 */
export function onServer(name, listener) {
    const handler = (/** @type {any} */ event) => listener(event.detail)
    const events = /** @type {EventTarget} */ (api)
    events.addEventListener(name, handler)
    return () => events.removeEventListener(name, handler)
}

/** @param {object} [body] makes it a POST @returns {RequestInit | undefined} */
const post = (body) => body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }

/**
 * The JSON answer of one of our routes; a refusal is an Error with the server's own sentence.
 * @param {string} path below /stepwise_grpo @param {object} [body] makes it a POST
 */
export async function ask(path, body) {
    const answer = await api.fetchApi(ROOT + path, post(body))
    const data = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }))
    if (!answer.ok) throw new Error(data.error ?? `${answer.status} ${answer.statusText}`)
    return data
}

/**
 * The address of a picture of ours.
 * @param {string} path below /stepwise_grpo
 */
export const address = (path) => api.apiURL(ROOT + path)

/** Run one of the page's own commands. @param {string} id */
export const command = (id) => app.extensionManager.command.execute(id)

/** @param {string} id */
export const setting = (id) => app.extensionManager.setting.get(id)

/** @param {"success" | "info" | "warn" | "error"} severity @param {string} summary @param {string} [detail] */
export const toast = (severity, summary, detail) => app.extensionManager.toast.add({ severity, summary, detail, life: 8000 })

/**
 * All nodes of a type, also those inside subgraphs.
 * @param {string} type @returns {GraphNode[]}
 */
export function nodesOfType(type) {
    /** @param {any} graph @returns {GraphNode[]} */
    const within = (graph) => graph.nodes.flatMap((/** @type {GraphNode} */ node) => (node.type === type ? [node] : node.subgraph ? within(node.subgraph) : []))
    return [...new Set(within(app.rootGraph ?? app.graph))] // two uses of one subgraph share its nodes
}

/** Queue the open workflow once, as the Run button does. */
export const queueOnce = () => app.queuePrompt(0, 1)

/**
 * Ask ComfyUI to stop this prompt if it is the running one.
 * @param {string} id
 */
export const interrupt = (id) => api.interrupt(id)

/** The name under which the server knows this page. */
export const pageId = () => api.clientId ?? ""

/**
 * The JSON answer of one of ComfyUI's own routes, null where it is empty.
 * @param {string} path @param {object} [body] makes it a POST
 */
export async function askComfy(path, body) {
    const answer = await api.fetchApi(path, post(body))
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`)
    const text = await answer.text()
    return text ? JSON.parse(text) : null
}

/** Tell the page that something on the canvas changed: draw it, and count it as a change of the workflow. */
export function changed() {
    app.graph.setDirtyCanvas(true, true)
    const manager = /** @type {any} */ (app.extensionManager)
    const tracker = manager.workflow?.activeWorkflow?.changeTracker
    if (tracker?.captureCanvasState) tracker.captureCanvasState()
    else tracker?.checkState?.() // its name on older pages
}

/**
 * What the page keeps of a node's last run; undefined where it keeps nothing.
 * @param {GraphNode} node
 */
export function nodeOutput(node) {
    const inside = node.graph !== (app.rootGraph ?? app.graph)
    return app.nodeOutputs?.[inside ? `${node.graph.id}:${node.id}` : node.id]
}

/**
 * Make an element within a node a good neighbour: pressing in it moves neither node nor canvas, while the wheel and the middle button still do.
 * @param {HTMLElement} element
 */
export function onCanvas(element) {
    element.addEventListener("wheel", (event) => {
        if (event.defaultPrevented) return
        event.preventDefault()
        event.stopPropagation()
        app.canvas.processMouseWheel(event)
    })
    element.addEventListener("pointerdown", (event) => {
        event.stopPropagation()
        if (event.button === 1) app.canvas.processMouseDown(event)
    })
    element.addEventListener("pointermove", (event) => {
        if (event.buttons & 4) app.canvas.processMouseMove(event)
    })
    element.addEventListener("pointerup", (event) => {
        if (event.button === 1) app.canvas.processMouseUp(event)
    })
}

/**
 * Load one of our style sheets once.
 * @param {string} name a file of web/css
 */
export function useStyles(name) {
    const link = document.createElement("link")
    link.rel = "stylesheet"
    link.href = new URL(`../css/${name}`, import.meta.url).href
    if (![...document.head.querySelectorAll("link")].some((other) => other.href === link.href)) document.head.append(link)
}

/** @type {Promise<void> | undefined} */
let words

/** Make `t` of words.js speak the page's language. Await it before anything is drawn. */
export function loadWords() {
    words ??= fetchWords().catch(() => {}) // without them the page shows the keys of its texts
    return words
}

async function fetchWords() {
    const all = await packTexts()
    useWords(all.en?.stepwiseGrpo, all[language()]?.stepwiseGrpo)
}

/** The page's language, such as "en" or "zh". @returns {string} */
export const language = () => app.extensionManager?.setting.get("Comfy.Locale") ?? "en"

/** @type {Promise<{[language: string]: any}> | undefined} */
let texts

/** All that packs say in all languages, by language. */
export function packTexts() {
    texts ??= api.fetchApi("/i18n").then((answer) => answer.json())
    return texts
}
