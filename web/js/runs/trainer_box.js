// The trainer process: alive since when it was last heard; the command that starts it; a quiet way to end it.

import { element } from "../draw/elements.js"
import { t } from "../words.js"
import { ago, askIn, button, copyable, whenChanged } from "./parts.js"

/** @typedef {import("./store.js").State} State */

/** @param {import("./panel.js").Context} context */
export function trainerBox({ store, guarded }) {
    const root = element("section", { class: "sg-trainer", "aria-label": t("runs.trainer.label") })
    const heard = element("span", { class: "sg-quiet" })

    const draw = whenChanged((/** @type {{trainer: State["trainer"], waiting: number}} */ { trainer, waiting }) => {
        root.replaceChildren(...(trainer?.alive ? alive(trainer) : trainer ? absent(trainer, waiting) : []))
    })

    /** @param {import("./store.js").Trainer} trainer */
    function alive(trainer) {
        const ask = () => askIn(root, t("runs.trainer.stopQuestion"), t("runs.trainer.stop"), guarded(() => store.stopTrainer()))
        const stop = trainer.stopping ? null : button("", t("runs.trainer.stop"), ask, { class: "sg-button sg-link" })
        const text = t(trainer.stopping ? "runs.trainer.stopping" : "runs.trainer.alive")
        const host = element("span", { class: "sg-quiet" }, trainer.host ?? "")
        const line = element("span", { class: "sg-grow" }, element("i", { class: "pi pi-check-circle sg-good", "aria-hidden": "true" }), ` ${text} `, host)
        return [element("div", { class: "sg-row" }, line, stop)]
    }

    /** @param {import("./store.js").Trainer} trainer @param {number} waiting */
    function absent(trainer, waiting) {
        const key = waiting ? (waiting === 1 ? "runs.trainer.oneWaits" : "runs.trainer.wait") : "runs.trainer.absent"
        const line = element("p", {}, element("i", { class: "pi pi-exclamation-circle sg-look", "aria-hidden": "true" }), ` ${t(key, { n: waiting })}`)
        line.append(" ", heard)
        return [line, element("p", { class: "sg-quiet" }, t("runs.trainer.how")), copyable(trainer.command, t("runs.trainer.command"))]
    }

    return {
        root,
        /** @param {State} state */
        update(state) {
            const { at = null, ...trainer } = state.trainer ?? {}
            const waiting = state.trainer?.alive ? 0 : state.runs.reduce((sum, run) => sum + run.waiting, 0) // told only while nobody takes them
            draw({ trainer: state.trainer && /** @type {any} */ (trainer), waiting })
            heard.textContent = at === null ? "" : t("runs.trainer.heard", { ago: ago(nowOf(state) - at) }) // while it is alive its beats are no news
        },
    }
}

/** The server's clock now. @param {State} state */
export const nowOf = (state) => state.now + Date.now() / 1000 - state.heard
