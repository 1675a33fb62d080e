// What the open workflow says of a run. Works on nodes; knows nothing of the page.

import { isActive, isLinked, pinned, runOf, widget } from "./pins.js"

/** @typedef {any} GraphNode - a node on the canvas */

export const LIVE = "StepwiseGRPO_LiveLoRA"
export const TRAINER = "StepwiseGRPO_GRPOLoRATrainer"
export const SAMPLER = "StepwiseGRPO_StepwiseSDESampler"

/**
 * @param {(type: string) => GraphNode[]} nodesOfType @param {string} run
 * @returns {import("./queue_until.js").Workflow & {nodes: number}}
 */
export function workflowOf(nodesOfType, run) {
    const trainers = nodesOfType(TRAINER).filter(isActive)
    const live = pinned(nodesOfType(LIVE).filter(isActive), run)
    return {
        trains: trainers.some((node) => runOf(node) === run),
        linked: trainers.some((node) => runOf(node) === null),
        fixedSeeds: nodesOfType(SAMPLER).filter((node) => isActive(node) && seedStays(node)).map((node) => String(node.title ?? node.type)),
        pinned: live.versions,
        nodes: live.nodes,
    }
}

/** Whether two queues would draw the same noise. @param {GraphNode} node */
const seedStays = (node) => !isLinked(node, "seed") && widget(node, "control_after_generate")?.value === "fixed"
