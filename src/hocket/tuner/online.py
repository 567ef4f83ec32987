"""The tuner of a communicator while its job runs: ranks exchange what they have timed, and take the same arms.

All ranks number calls alike. At an agreed number they merge: rank 0 gathers what each has timed, in a buffer of one
shape, learns, and broadcasts what is new; that counts from the next call on. Between merges an arm follows from the
table and the number of the call (native/policy/arms.h), so that no call needs a word more.

A merge takes as long as ten calls of 128 KB or more, so merges are seldom. At agreed numbers between two of them ranks
look: one word of each says whether its calls take another time than before. If any does, they merge at once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from hocket._native import ARMS, KeyArms, Member
from hocket.errors import BadTable, HocketError, describe
from hocket.ir.schedule import Schedule
from hocket.runtime.execution import Endpoint
from hocket.tunables import NEVER, show_size
from hocket.tuner import store
from hocket.tuner.arms import Arm, Key, calibrated, candidates, predicted
from hocket.tuner.learner import Explanation, Learner, Samples
from hocket.tuner.store import Tuned
from hocket.tuning import Call, Choice, Entry, Sizes

_log = logging.getLogger("hocket")

KEYS = 64
"""That are tuned at a time: those that come first with ``WORTH`` calls. Others stay with the static policy."""
WORTH = 32
"""Calls of a key before it is tuned: whoever calls seldom gains nothing by what exploring costs."""
_NEW = 4
"""Keys at most that a merge adds, while the other ranks wait: to compile and simulate the arms of one takes up to 0.2 s
on the most ranks for which programs are tried (arms.COMPILED)."""

LOOKS = 32
"""Calls between two looks, at least: chosen."""
LEAST_BETWEEN, ENOUGH_BETWEEN, MOST_BETWEEN = 64, 1 << 10, 1 << 20
"""Calls between two merges: the least before the first and of the key with most calls, unless enough were made of all
keys; the most where calls are short. Chosen."""
ADVANCE, PART = 0.05, 0.005
"""Merges may take so many seconds at the beginning, then this part of the time between two. Looks may take this part,
if each takes as long as the shortest; merges that they bring on this part, and so many seconds in advance. Chosen."""
SAVED_EVERY = 60.0
"""Seconds between two states of the file, chosen; the last is written when the communicator is closed."""
WINDOW = 4
"""Calls of a key in a row by one arm, in the mean, as the first by another arm meets other caches (measured for two
paths in benchmarks/results/ablation.md)."""

_WINDOWS = 1 << 16
_MESSAGE = 16 << 10
"""Bytes of what rank 0 says in a merge."""


class _NewKey(msgspec.Struct, frozen=True, array_like=True):
    slot: int
    key: Key
    arms: list[Arm]


class _Table(msgspec.Struct, frozen=True, array_like=True):
    """What KeyArms.set takes, for a slot."""

    slot: int
    shift: int
    incumbent: int
    until: list[int]


class _News(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 says in a merge: ``version`` is that of all tables, ``merge_at`` the call of the next one,
    ``between_looks`` the calls between two looks until then."""

    version: int
    merge_at: int
    between_looks: int
    keys: list[_NewKey]
    tables: list[_Table]


class TunedKey:
    """Calls of one key: native code chooses their arms. ``call``: one of them, as it came first."""

    def __init__(self, key: Key, call: Call) -> None:
        self.key, self.call, self.native = key, call, KeyArms()
        self.name = str(key)  # for the learner
        self.arms: list[Arm] = []  # none before all ranks know them
        self.slot: int | None = None
        self.incumbent = 0
        self.calls = 0
        self._schedules: dict[int, Schedule | None] = {}

    def choice(self, number: int, default: Choice) -> tuple[Choice, int | None, bool]:
        """What a call takes by an arm, for which the static policy would have taken ``default``; its tile, where that
        is another; and whether it offers zero copies. A program that cannot do the call leaves it to the default.
        """
        arm = self.arms[number]
        if number not in self._schedules:
            self._schedules[number] = arm.schedule(default.call)
        schedule = self._schedules[number]
        if schedule is None:
            return default, arm.tile, arm.zero_copy
        entry = Entry(schedule, Sizes(), f"the tuner, {arm}")
        return (replace(default, entry=entry), None, False) if entry.takes(default.call) else (default, None, True)


class Online:
    """The tuner of one communicator. ``gather`` brings what every rank has to rank 0, one behind the other;
    ``broadcast`` brings what rank 0 has to all. Both are calls of all ranks. Rank 0 alone reads the table that is
    wished for, and keeps it up to date where arms are tried. Raises BadTable there, if it is not of this ``machine``.
    What fails on rank 0 alone ends the communicator.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        gather: Callable[[NDArray[np.float64]], NDArray[np.float64] | None],
        broadcast: Callable[[NDArray[np.uint8]], object],
        machine: str,
    ) -> None:
        self._endpoint, self._gather, self._broadcast = endpoint, gather, broadcast
        self._keys: dict[Key, TunedKey] = {}
        self._slots: list[TunedKey] = []
        self.version = 0  # of the tables, the same on all ranks
        self.learner = Learner()
        self._due = LEAST_BETWEEN  # the call of the next merge, unless a look brings it on
        self._merged_at, self._merged = 0, time.perf_counter()  # the number of calls at the latest merge, and when
        self._spent, self._cost = 0.0, 0.0  # seconds of all merges but the first, and of a recent one, on rank 0
        self._alarms = 0.0  # seconds of those that looks have brought on, less what they may take
        self._adding = 0.0  # seconds for which the latest one added keys: not spent, as it is once for each
        wish = endpoint.tuner
        self._machine, self._tries = machine, wish.tries
        self._file = None if wish.table is None or endpoint.rank != 0 else Path(wish.table)
        with self._alone("begin to learn"):
            self._restored = self._read()
        self._saved = self._merged
        endpoint.alive().next_merge(self._due, LOOKS)
        endpoint.at_close = self.save

    def of(self, call: Call, kind: str, op: str) -> TunedKey | None:
        """The key of a call on elements of type ``kind``; None where the static policy decides."""
        key = Key.of(call, kind, op)
        if key is None or self._is_short(key, call):
            return None
        return self._keys.setdefault(key, TunedKey(key, call))

    def _is_short(self, key: Key, call: Call) -> bool:
        """Whether nothing is learned of its calls, as they are short. ``use:FILE`` counts for calls of any size."""
        return self._tries and not key.nodes and 2 * key.least <= _learned(call)

    def _read(self) -> dict[Key, Tuned]:
        if self._file is None:
            return {}
        return {tuned.key: tuned for tuned in store.own(self._file, self._machine, new=self._tries).keys}

    def save(self) -> None:
        """On rank 0, write what is known into the file, beside what others have written; warn where that fails."""
        if self._file is None or not self._tries or not self._slots:
            return
        known = [
            Tuned.learned(each.key, each.arms, found)
            for each in self._slots
            if self._says_more(each.key, found := self.learner.why(each.name))
        ]
        try:
            store.update(self._file, self._machine, known)
        except BadTable as error:
            _log.warning("what the tuner knows is lost: %s", error)
        self._saved = time.perf_counter()

    def _says_more(self, key: Key, found: Explanation) -> bool:
        """Whether as much was timed here as the file knew, which is believed less the longer ago it was."""
        restored = self._restored.get(key)
        before = 0 if restored is None else sum(arm.samples for arm in restored.arms)
        return sum(arm.samples for arm in found.candidates) >= 2 * before

    def why(self, call: Call, kind: str, op: str) -> str:
        """What a call takes, and what is known of its arms: on rank 0, the others know the arm alone."""
        key = Key.of(call, kind, op)
        if key is not None and self._is_short(key, call):
            least = _learned(call)
            of = "" if least == NEVER else f" of a call of less than {show_size(least)}"
            where = "where ranks share cores" if call.oversubscribed else "on one node"
            return f"the static policy: {where} nothing is learned{of}"
        known = None if key is None else self._keys.get(key)
        if known is None or known.slot is None:
            return f"the static policy: a key is tuned after {WORTH} calls of it"
        if self._endpoint.rank != 0:
            return f"{known.arms[known.incumbent]}; rank 0 knows why"
        found = self.learner.why(known.name)
        said = f"{found.choice.reason.name}: {found.choice.reason.value}; {found.calls} calls, {found.changes} changes"
        return "\n".join([said, *map(str, found.candidates)])

    def merge(self) -> None:
        """A call of all ranks. What the two calls in it raise they raise on all ranks; whatever else goes wrong, or
        interrupts this rank between them, ends the communicator."""
        member = self._endpoint.alive()
        member.land()  # calls in the background are timed, too
        number, pause = member.calls, time.perf_counter() - self._merged
        with self._alone("merge", but=(HocketError,)):
            with self._alone("say what it has timed"):
                noted = self._noted(member)
            said = self._gather(noted)
            begun = time.perf_counter()
            with self._alone("learn"):
                message = self._message(said, number, pause)
            self._broadcast(message)
            with self._alone("hear what was learned"):
                length = int.from_bytes(message[:4].tobytes(), "little")
                self._take(msgspec.msgpack.decode(message[4 : 4 + length].tobytes(), type=_News), member)
                self._merged_at, self._merged = member.calls, time.perf_counter()
                self._count(self._merged - begun - self._adding)
                if self._merged - self._saved > SAVED_EVERY:
                    self.save()

    def _count(self, seconds: float) -> None:
        """What a merge took. The first one finds and loads what all need."""
        if self.version > 1:
            self._spent += seconds
            self._cost += (seconds - self._cost) / (4 if self._cost else 1)

    def _message(self, said: NDArray[np.float64] | None, number: int, pause: float) -> NDArray[np.uint8]:
        """What rank 0 broadcasts: the length and the news; on other ranks room for it."""
        message = np.zeros(_MESSAGE, np.uint8)
        if said is not None:
            news = self._learn(said.reshape(self._endpoint.size, KEYS, ARMS + 1, 3), number, pause)
            encoded = msgspec.msgpack.encode(news)
            message[: len(encoded) + 4] = np.frombuffer(len(encoded).to_bytes(4, "little") + encoded, np.uint8)
        return message

    @contextmanager
    def _alone(self, what: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Has the others hear of what fails here alone."""
        try:
            yield
        except but:
            raise
        except BaseException as error:
            self._endpoint.abort(f"could not {what}: {describe(error)}")
            raise

    def _noted(self, member: Member) -> NDArray[np.float64]:
        """By slot: first the calls; then of each arm how many were timed, and the sums of log2 of their seconds and of
        its square."""
        noted = np.zeros((KEYS, ARMS + 1, 3))
        tick = math.log2(member.tick)
        for known in list(self._keys.values()):
            found = known.native.take()
            known.calls += found.calls
            if known.slot is not None:
                noted[known.slot, 0, 0] = found.calls
                noted[known.slot, 1:] = [(timed.count, timed.sum, timed.squares) for timed in found.timings]
        count, total, squares = noted[:, 1:].transpose(2, 0, 1)
        squares += 2 * tick * total + count * tick * tick
        total += count * tick
        return noted

    def _learn(self, said: NDArray[np.float64], number: int, pause: float) -> _News:
        """On rank 0: what is new. ``number``: that of the merge, ``pause`` seconds after the latest one."""
        made = said[0, :, 0, 0].tolist()  # calls of each key, the same on all ranks
        for known, of_key, timed in zip(self._slots, made, slowest(said[:, : len(self._slots), 1:]), strict=False):
            for arm, samples in timed:
                self.learner.observe(known.name, arm, samples)
            self.learner.counted(known.name, int(of_key))
        calls, begun, waiting = max(1, number - self._merged_at), time.perf_counter(), self._waiting()
        added = self._add(waiting[:_NEW])
        self._adding = time.perf_counter() - begun
        early = number < self._due  # of a change, the calls after this merge say more than those before it
        between = LEAST_BETWEEN if waiting or early else batch(calls, max(made))
        if self._spent >= ADVANCE and self._cost and not early:
            between = paced(calls, pause, self._cost, between)
        self._alarms = max(0.0, self._alarms - PART * pause) + (2 * self._cost if early else 0.0)  # an alarm brings two
        looks = between  # none, where nothing is tried, and while alarms have taken more than they may
        if self._tries and self._alarms <= ADVANCE:
            member = self._endpoint.alive()
            looks = paced(calls, pause, member.look_ticks * member.tick or self._cost / 4, LOOKS)
        names = [*(known.name for known in self._slots), *(str(new.key) for new in added)]
        tables = [self._table(slot, name, made[slot] / calls, between) for slot, name in enumerate(names)]
        return _News(self.version + 1, number + between, looks, added, tables)

    def _waiting(self) -> list[TunedKey]:
        """Keys that are worth a slot, as far as there are any: those with most calls first."""
        worth = WORTH if self._tries else math.inf
        new = [known for known in list(self._keys.values()) if known.slot is None]
        found = [known for known in new if known.calls >= (1 if known.key in self._restored else worth)]
        return sorted(found, key=lambda known: -known.calls)[: KEYS - len(self._slots)]

    def _add(self, waiting: list[TunedKey]) -> list[_NewKey]:
        """Give them slots."""
        added: list[_NewKey] = []
        here = calibrated() if waiting else None
        for known in waiting:
            key, arms = known.key, candidates(known.key, known.call)
            added.append(_NewKey(len(self._slots) + len(added), key, arms))
            prior = [predicted(arm, known.call, key.op, here) for arm in arms]
            near = [str(replace(key, bits=key.bits + apart)) for apart in (-1, 1)]
            self.learner.add(known.name, list(map(str, arms)), prior, near)
            if (restored := self._restored.get(key)) is not None:
                self._recall(known, arms, restored)
        return added

    def _recall(self, known: TunedKey, arms: list[Arm], restored: Tuned) -> None:
        """Have the learner know what the file knows of arms that are still there."""
        found = {each.arm: each.recalled for each in restored.arms}
        best = restored.best.arm
        chosen = arms.index(best) if best in arms else 0
        self.learner.recall(known.name, [found.get(arm) for arm in arms], chosen)
        if not self._tries:
            self.learner.pin(known.name, chosen)

    def _table(self, slot: int, name: str, share: float, between: int) -> _Table:
        """``share``: that of the key in the latest calls; ``between``: calls until the next merge. Of a key that was
        not called nothing is tried: how many calls a trial would be is not known."""
        coming = round(share * between)
        choice = self.learner.choice(name, coming)
        until, total = [], 0.0
        for part in choice.explore if coming >= WINDOW else ():
            total += part
            until.append(min(_WINDOWS, round(total * _WINDOWS)))
        shift = max(0, math.ceil(math.log2(WINDOW / share))) if until else 0
        return _Table(slot, shift, choice.incumbent, until)

    def _take(self, news: _News, member: Member) -> None:
        for new in news.keys:
            known = self._keys.get(new.key)
            if known is None:  # this rank had errors where others made such calls
                known = self._keys[new.key] = TunedKey(new.key, new.key.call())
            known.slot, known.arms = new.slot, new.arms
            self._slots.append(known)
            member.watch(known.native)
        for table in news.tables:
            known = self._slots[table.slot]
            known.incumbent = table.incumbent
            known.native.set(news.version * KEYS + table.slot, table.shift, table.incumbent, table.until)
        self.version, self._due = news.version, news.merge_at
        member.next_merge(news.merge_at, news.between_looks)


def _learned(call: Call) -> int:
    """Bytes of calls on one node from which on there is something to learn."""
    return call.tuned.learned_crowded_bytes if call.oversubscribed else call.tuned.learned_bytes


def batch(calls: int, most: float) -> int:
    """Calls until the next merge, so that it has something to say, if the key with most calls has ``most`` of them."""
    return min(int(LEAST_BETWEEN * calls / most), ENOUGH_BETWEEN) if most else LEAST_BETWEEN


def paced(calls: int, seconds: float, cost: float, least: int) -> int:
    """Calls until the next merge, or look, so that those of ``cost`` seconds take no more than their part of the time,
    if calls come as the latest ``calls`` did, in ``seconds``; ``least`` of them. After a pause, in which none came, one
    merge comes early, and not many in a row.
    """
    return max(least, min(int(calls * cost / (PART * seconds)), MOST_BETWEEN))


def slowest(said: NDArray[np.float64]) -> list[list[tuple[int, Samples]]]:
    """Of what each rank has timed of each arm of each key, that of the rank that was slowest in the mean of all that it
    timed of the key: the slowest of each arm by itself would be the slower the fewer calls of it were timed. By key,
    the arms that were timed."""
    counts, totals = said[..., 0].sum(2), said[..., 1].sum(2)
    ranks = np.divide(totals, counts, out=np.full_like(totals, -np.inf), where=counts > 0).argmax(0)
    return [
        [
            (arm, Samples(int(count), total / count, squares / count))
            for arm, (count, total, squares) in enumerate(arms)
            if count
        ]
        for arms in said[ranks, np.arange(len(ranks))].tolist()
    ]
