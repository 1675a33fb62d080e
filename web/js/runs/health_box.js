// The sentence about the run's health, with a version to go back to where one is better, and what the self-check found wrong.

import { element } from "../draw/elements.js"
import { shown } from "../draw/scales.js"
import { t } from "../words.js"
import { healthOf } from "./health.js"
import { button, whenChanged } from "./parts.js"

const ICONS = { good: "pi-check-circle", look: "pi-eye", bad: "pi-exclamation-triangle", waiting: "pi-hourglass" }
const COUNTS = ["count", "enough", "version", "percent"] // values that are whole numbers

/** @param {(version: number) => void} openVersion */
export function healthBox(openVersion) {
    const root = element("section", { class: "sg-health", "aria-label": t("runs.health.label"), "aria-live": "polite" })

    const draw = whenChanged((/** @type {{health: import("./health.js").Health, failed: string[]}} */ { health, failed }) => {
        const values = Object.fromEntries(Object.entries(health.values ?? {}).map(([name, value]) => [name, COUNTS.includes(name) ? value : shown(value)]))
        const icon = element("i", { class: `pi ${ICONS[health.level]}`, "aria-hidden": "true" })
        const line = element("p", {}, icon, " ", element("b", {}, t(`runs.health.level.${health.level}`)), ` ${t(`runs.health.${health.key}`, values)}`)
        const back = health.back === undefined ? null : button("pi-undo", t("runs.health.openVersion", { n: health.back }), () => openVersion(/** @type {number} */ (health.back)))
        root.className = `sg-health sg-health-${health.level}`
        root.replaceChildren(line, ...(back ? [back] : []), ...(failed.length ? [element("p", {}, t("runs.health.check", { names: failed.join(", ") }))] : []))
    })

    return {
        root,
        /** @param {import("./store.js").Detail} detail */
        update(detail) {
            const failed = (detail.findings ?? []).filter((finding) => finding?.passed === false).map((finding) => String(finding.name))
            draw({ health: healthOf(detail.events, detail.looks), failed })
        },
    }
}
