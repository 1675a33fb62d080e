"""How many rows of an update fit into a device's memory: plain arithmetic on bytes. Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_ROWS = 256  # more at once are no faster
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What an update keeps in memory, bytes."""

    weights: int
    lora: int
    """LoRA, its gradients and the optimiser's averages."""
    fixed: int
    """Once a call, whatever its number of rows."""
    row: int
    """For each row of a call: what forward keeps for backward, and what both need at the worst moment."""
    block: int
    """Weights of the largest block in the precision of the computation."""
    measured: bool = False
    """Whether fixed and row come from a real row instead of an estimate."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a device has, bytes. Its total memory counts and not what is free at the moment: the split into calls decides
    the last bits of an update, and the same update must give the same bits."""

    total: int
    reserve: int
    """Left alone, for the system and for what the estimate does not see."""
    streams: bool = False
    """Whether weights that find no place can stay in RAM and come to the device block by block."""
    kept: float = 0.0
    """Share of the device that the loader fills with weights even so."""


@dataclass(frozen=True)
class Fit:
    """The answer: ``rows`` a call (0 = not even one fits), and the ``estimate`` of all memory with them (with one, where none fits), bytes."""

    rows: int
    estimate: int
    message: str
    beside_weights: int = 0
    """Of the estimate, what must stay free of weights."""


def fit(demand: Demand, room: Room, wanted: int, asked: int = 0, advice: Sequence[str] = ()) -> Fit:
    """As many rows as fit, at most the ``wanted`` ones; ``asked`` rows whatever fits, where that is not 0."""
    usable = room.total - room.reserve
    most = max(0, usable - demand.weights - demand.lora - demand.fixed) // demand.row
    streamed = not most and room.streams
    if streamed:
        # Twice a block: the copies one block works on, and those that are on their way.
        most = max(0, int(usable * (1 - room.kept)) - demand.lora - demand.fixed - 2 * demand.block) // demand.row
    rows = min(asked or min(most, MOST_ROWS), wanted)
    needs = demand.weights + demand.lora + demand.fixed + max(rows, 1) * demand.row
    if not rows:
        least = needs if not room.streams else min(needs, int((needs - demand.weights + 2 * demand.block) / (1 - room.kept)))
        return Fit(0, least, refusal(least, room, advice))
    too_many = rows > most
    estimate = min(needs, usable) if streamed and not too_many else needs
    beside = needs - demand.weights + (2 * demand.block if streamed else 0)
    return Fit(rows, estimate, _message(demand, room, rows, estimate, streamed, too_many), beside)


def _message(demand: Demand, room: Room, rows: int, estimate: int, streamed: bool, too_many: bool) -> str:
    how = "by one measured row" if demand.measured else "estimated"
    line = f"{how} {gib(estimate)} of {gib(room.total)}, {rows} {'row' if rows == 1 else 'rows'} a call"
    if too_many:
        return f"{line}: that is more than fits; lower rows_per_call in GRPO LoRA Trainer, or set it to 0"
    return f"{line}, weights streamed from RAM" if streamed else line


def refusal(needs: int, room: Room, advice: Sequence[str]) -> str:
    """Why not even one row fits, and what to do."""
    hint = f" Try: {'; '.join(advice)}." if advice else ""
    return f"one row of this update needs {gib(needs)}, and of the {gib(room.total)} here {gib(room.total - room.reserve)} can be used.{hint}"


def gib(size: int) -> str:
    """Bytes for people: '11.2 GiB', '32 MiB'."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.3g} MiB"


def rows_wanted(steps: int, members: int, group_size: int, updates: int) -> int:
    """The most states (step, member) that one optimiser step has: the members of every group are dealt out to ``updates`` of them."""
    updates = min(updates, group_size)
    return steps * (members // group_size) * -(-group_size // updates)
