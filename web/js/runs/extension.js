// Registers the sidebar tab "Stepwise GRPO" and ties its boxes to ComfyUI's page.

import * as comfy from "../comfy.js"
import { t } from "../words.js"
import { createClaims } from "./claim.js"
import { panel } from "./panel.js"
import { NEWEST, pin } from "./pins.js"
import { fateOf, inFlight, queueOne, takeOut } from "./prompts.js"
import { Queueing } from "./queue_loop.js"
import { MESSAGE, Store, said } from "./store.js"
import { LIVE, workflowOf } from "./workflow.js"

const TEMPLATES = "Comfy.BrowseTemplates"

const store = new Store({ ask: comfy.ask, onServer: comfy.onServer })
const claims = createClaims(localStorage, Math.random().toString(36).slice(2))
const workflow = (/** @type {string} */ run) => workflowOf(comfy.nodesOfType, run)
const queueing = new Queueing({
    ask: comfy.ask,
    onServer: comfy.onServer,
    workflow,
    queueOne: () => queueOne(comfy.askComfy, comfy.queueOnce, comfy.pageId()),
    inFlight: (run) => inFlight(comfy.askComfy, run),
    fateOf: (id) => fateOf(comfy.askComfy, id),
    storage: sessionStorage,
    claims,
})

/** @param {() => Promise<any>} act */
const guarded = (act) => () => void act().catch((error) => comfy.toast("error", t("runs.title"), said(error)))

/** @param {string} run @param {number} version */
function pinNodes(run, version) {
    const { set, linked, others } = pin(comfy.nodesOfType(LIVE), run, version)
    if (set) comfy.changed()
    const key = set ? (version === NEWEST ? "unpinned" : "pinned") : linked ? "linked" : others ? "others" : "noNode"
    comfy.toast(set ? "success" : "warn", t(`runs.pin.${key}`, { n: set, version, run }))
}

/** @param {string} run @param {(id: string) => Promise<void>} [interrupt] */
async function halt(run, interrupt) {
    if (queueing.get().intent?.run === run) queueing.stop()
    await queueing.look() // a prompt may be on its way to the queue; only there it can be taken out
    await store.act(run, "pause")
    const taken = await takeOut(comfy.askComfy, run, interrupt)
    if (taken) comfy.toast("info", t("runs.takenOut", { n: taken }))
}

/** @type {import("./panel.js").Context} */
const context = {
    store,
    queueing,
    claims,
    address: comfy.address,
    workflow,
    pin: pinNodes,
    pause: (run) => halt(run),
    stop: (run) => halt(run, comfy.interrupt),
    resume: (run) => store.act(run, "resume"),
    openTemplate: () => comfy.command(TEMPLATES),
    guarded,
}

/** @type {(() => void) | null} */
let close = null

/** @param {HTMLElement} container */
function show(container) {
    close?.()
    close = panel(context, container)
}

comfy.onServer(MESSAGE, () => {}) // the page complains of messages that nobody listens to, and the tab may be closed

comfy.registerExtension({
    name: "StepwiseGRPO.Runs",
    async setup() {
        comfy.useStyles("runs.css")
        await comfy.loadWords()
        addEventListener("pagehide", () => queueing.leave())
        addEventListener("pageshow", (event) => void (event.persisted && queueing.comeBack()))
        comfy.registerSidebarTab({
            id: "stepwise-grpo",
            icon: "pi pi-chart-line",
            title: t("runs.title"),
            tooltip: t("runs.tooltip"),
            type: "custom",
            render: show,
            destroy: () => (close?.(), (close = null)),
        })
        await queueing.resume()
    },
})
