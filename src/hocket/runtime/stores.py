"""Ranks that meet through a key-value store they were given: who they are, and whether they can share memory at all."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, cast

from hocket.errors import BootstrapFailed, CannotShare, HocketError, describe
from hocket.runtime.launchers import MACHINES, Place

_CONTAINERS = "containers must share the network of the host, or of one of them"
USERS = "memory is shared between processes of one user only"
_NOTIFIED = 1.0  # seconds that a store may wait: meanwhile nothing else is heard, and some complain when they end


class Store(Protocol):
    """A key-value store that all ranks reach. Those of torch.distributed are such stores.

    All keys that are set begin with ``hocket/``. One that has ``wait(keys, timeout)`` too, as torch's have, is polled
    only after that has raised: where not all keys were set in a timedelta.
    """

    def set(self, key: str, value: str, /) -> object:
        """Set a key. None is set twice but one for each rank, by that rank."""

    def get(self, key: str, /) -> bytes | str:
        """The value of a key that is set."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of these are set. Does not wait."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank's place at a store. ``pause`` sleeps, and raises where it is known that a rank will never come."""

    store: Store
    rank: int
    size: int
    timeout: float
    pause: Callable[[float], None]


def place(seat: Seat, protocol: str, node: str | BootstrapFailed = "") -> Place:
    """Wait until every rank has said in the store who it is, and agree on a token to meet under.

    ``node``: what tells those of one machine apart that are told not to share memory, or what is wrong with it. Raises
    BootstrapFailed on every rank if they cannot meet: CannotShare, if that is for where they are.
    """

    def decide(identities: list[Any]) -> dict[str, Any]:
        _check(identities)
        return {"token": secrets.token_hex(16), "size": seat.size}

    where = {"failed": [node.reason, node.help]} if isinstance(node, BootstrapFailed) else {"node": node}
    said = agree(seat, identity() | {"size": seat.size, "protocol": protocol, **where}, decide)
    if said["size"] != seat.size:  # rank 0 looks at the ranks that it was told of
        raise BootstrapFailed(f"rank {seat.rank} was told of {seat.size} ranks, rank 0 of {said['size']}")
    return Place(seat.rank, seat.size, said["token"])


def agree(seat: Seat, word: object, decide: Callable[[list[Any]], dict[str, Any]]) -> dict[str, Any]:
    """What rank 0 makes of the words of all ranks, plain values, by ``decide``: all get that, or raise what it raises.

    Each rank counts its own meetings in the store, so that all take part in the same. Raises BootstrapFailed, which
    CannotShare is, on every rank.
    """
    store, rank, size, timeout, pause = seat.store, seat.rank, seat.size, seat.timeout, seat.pause
    deadline = time.monotonic() + timeout
    notified: Callable[[list[str], timedelta], object] | None = getattr(store, "wait", None)
    try:
        number = _count(store, rank)
        names = [f"hocket/{number}/{r}" for r in range(size)]
        terms = f"hocket/{number}/terms"

        def wait(keys: list[str]) -> None:
            if notified is not None:
                with suppress(Exception):  # which each store has its own for
                    notified(keys, timedelta(seconds=max(0.001, min(timeout, _NOTIFIED))))
            interval = 0.001
            while not store.check(keys):
                if time.monotonic() >= deadline:
                    missing = {r for r in range(size) if not store.check([names[r]])}
                    raise absent(size, timeout, missing or {0})
                pause(interval)
                interval = min(2 * interval, 0.05)

        store.set(names[rank], json.dumps(word))
        said: dict[str, Any]
        if rank == 0:
            try:
                wait(names)
                said = decide([json.loads(store.get(name)) for name in names])
            except BootstrapFailed as error:
                said = {"failed": error.reason, "help": error.help, "apart": isinstance(error, CannotShare)}
            store.set(terms, json.dumps(said))
        else:
            wait([terms])
            said = json.loads(store.get(terms))
    except HocketError:
        raise
    except Exception as error:
        raise BootstrapFailed(f"the store failed: {describe(error)}") from error
    if "failed" in said:
        raise (CannotShare if said["apart"] else BootstrapFailed)(said["failed"], said["help"])
    return said


def absent(size: int, timeout: float, ranks: set[int], also: str = "") -> BootstrapFailed:
    """The error that says who was not there in time."""
    which = ", ".join(map(str, sorted(ranks)))
    return BootstrapFailed(
        f"not all of the {size} ranks were here after {timeout:.3g} s: {which} not seen{also}",
        "ranks must be on one machine, in one network namespace",
    )


def _count(store: Store, rank: int) -> int:
    """How many meetings this rank had through this store."""
    key = f"hocket/meetings/{rank}"
    number = int(store.get(key)) if store.check([key]) else 0
    store.set(key, str(number + 1))
    return number


def identity() -> dict[str, object]:
    """What processes have in common that can share memory."""
    machine = network = None
    with suppress(OSError):
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        network = Path("/proc/self/ns/net").stat().st_ino
    return {"machine": machine, "network": network, "user": os.geteuid()}


def _check(identities: list[Mapping[str, object]]) -> None:
    """Raise BootstrapFailed if these ranks, in rank order, cannot share memory."""
    first = identities[0]
    for rank, found in enumerate(identities):
        if "failed" in found:
            reason, helps = cast("tuple[str, str | None]", found["failed"])
            raise BootstrapFailed(f"rank {rank} cannot take part: {reason}", helps)
    for field, how, helps in (
        ("protocol", "run different versions of hocket", None),
        ("size", "were told different numbers of ranks", None),
        ("machine", "are on different machines", MACHINES),
        ("network", "are in different network namespaces", _CONTAINERS),
        ("user", "are of different users", USERS),
        ("node", "are told not to share memory", None),
    ):
        others = [str(rank) for rank, identity in enumerate(identities) if identity[field] != first[field]]
        if others:
            error = BootstrapFailed if field in ("protocol", "size") else CannotShare
            raise error(f"rank 0 and rank{'s' * (len(others) > 1)} {', '.join(others)} {how}", helps)
