// The thumbnails of one group: one picture from the server, a row a member and a column a state, cut into tiles.

/** @typedef {{width: number, height: number}} Size */

export class Thumbnails {
    /** @type {ImageBitmap | null} */
    #sheet = null

    /** @param {Size} tile px of a tile */
    constructor(tile) {
        this.tile = tile
    }

    /**
     * Fetch and decode the picture at `address`; an Error when it does not come.
     * @param {string} address
     */
    async load(address) {
        const answer = await fetch(address)
        if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`)
        this.#sheet = await createImageBitmap(await answer.blob())
    }

    get ready() {
        return this.#sheet !== null
    }

    /**
     * Draw a member's estimate at a state; an empty tile where there is none.
     * @param {HTMLCanvasElement} canvas @param {number} member @param {number} state
     */
    draw(canvas, member, state) {
        const { width, height } = this.tile
        if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height })
        const context = canvas.getContext("2d")
        if (!context) return
        context.clearRect(0, 0, width, height)
        if (this.#sheet) context.drawImage(this.#sheet, state * width, member * height, width, height, 0, 0, width, height)
    }

    /** Give the memory back. */
    close() {
        this.#sheet?.close()
        this.#sheet = null
    }
}
