"""The proof of a schedule: no deadlock, no race, the postcondition.

A schedule is an event graph in which every step waits for a conjunction of single-writer events, so its outcome does
not depend on timing, and one abstract execution decides for all interleavings. Every rejection names the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hocket.collectives import AllReduce
from hocket.errors import InvalidSchedule, WrongType, caller
from hocket.ir import schedule as msccl_ir
from hocket.ir.collector import collector_paused
from hocket.ir.schedule import Narrowing, Schedule
from hocket.verify.events import Events
from hocket.verify.postcondition import check_program, check_values
from hocket.verify.races import both_orders, check_races
from hocket.verify.sums import CONTRACTS, Contract, Sums

__all__ = ["CONTRACTS", "Contract", "Proof", "both_orders", "check_order", "check_program", "kept", "prove", "proven"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proven, with its bounds: for this many ranks, with ``slots`` or more slots on each connection."""

    ranks: int
    steps: int
    slots: int
    narrowings: tuple[Narrowing, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> Proof:
        """That of a schedule which the compiler has proven, as it does with every one."""
        return cls(len(schedule.ranks), sum(1 for _ in schedule.steps()), schedule.slots, schedule.narrowings)

    def __str__(self) -> str:
        slots = f"{self.slots} or more slots" if self.slots > 1 else "any number of slots"
        return f"proven for {self.ranks} ranks, {slots}"


def prove(schedule: Schedule, reproducible: Contract | None = None) -> Proof:
    """Prove a schedule, of whatever origin, or raise what refutes it.

    ``Proof.slots`` is the least number of slots, at most ``schedule.slots``, that the schedule needs. Raises
    InvalidSchedule (also when the schedule does not own up to a narrowing), ChannelConflict, UnmatchedTransfer,
    Deadlock, Race, UninitializedChunk or PostconditionFailed; after all these SumsDiffer, if it does not keep the
    contract, by default "across-ranks" for an AllReduce. WrongType for what is no Schedule.
    """
    if not isinstance(schedule, Schedule):
        raise WrongType(
            f"prove() takes a Schedule, not {type(schedule).__name__}",
            caller(),
            "a Program is proven when it is compiled: program.compile() returns a proven Schedule, or raises",
        )
    proof = _prove(schedule, reproducible)
    hidden = set(proof.narrowings) - set(schedule.narrowings)
    if hidden:
        found = min(hidden, key=lambda narrowing: (narrowing.value, narrowing.location))
        raise InvalidSchedule(
            f"it moves a value of chunk {found.value} of a unit through chunk {found.location}, which is shorter for "
            f"uneven sizes, and does not say so: 'narrow {found.value} -> {found.location}' is missing"
        )
    return proof


def proven(schedule: Schedule, reproducible: Contract | None = None) -> tuple[Schedule, Proof]:
    """The schedule with what its proof finds: the least slots and the sizes to refuse.

    Raises what ``prove`` raises, but is content with a schedule that does not own up to a narrowing.
    """
    proof = _prove(schedule, reproducible)
    return replace(schedule, slots=proof.slots, narrowings=proof.narrowings), proof


@collector_paused()
def check_order(schedule: Schedule) -> None:
    """Raise Deadlock or Race if a schedule whose form is right can get stuck or read too early or too late; what it
    computes is not looked at."""
    events = Events(schedule)
    _, order = events.least_slots(schedule.slots)
    check_races(events, order)


@collector_paused()
def kept(schedule: Schedule) -> Contract | None:
    """The strongest contract on bits that a proven schedule keeps; None if it sums nothing."""
    events = Events(schedule)
    _, order = events.least_slots(schedule.slots)
    terms, _ = check_values(events, order)
    return Sums(events, terms).kept()


@collector_paused()
def _prove(schedule: Schedule, reproducible: Contract | None = None) -> Proof:
    msccl_ir.verify(schedule)
    events = Events(schedule)
    slots, order = events.least_slots(schedule.slots)
    check_races(events, order)
    terms, narrowings = check_values(events, order)
    if reproducible is None and isinstance(schedule.collective, AllReduce):
        reproducible = "across-ranks"
    if reproducible is not None:
        Sums(events, terms).demand(reproducible)
    return Proof(len(schedule.ranks), len(order), slots, narrowings)
