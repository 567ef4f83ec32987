"""Transfers that share links, by max-min fairness: each gets as much as its narrowest link can give all alike.

A transfer also has a cap of its own, what one thread block or one NIC moves. A link whose transfers' caps fit into its
bandwidth holds nobody up, so only *loaded* links are looked at when a transfer begins or ends, and only those transfers
that a chain of loaded links joins to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_SLACK = 1 + 1e-9
"""Sums of caps are of floating point: what exceeds a bandwidth by less does not."""


class Flow:
    """A transfer under way: bytes on the wire that are ``left`` at ``since``, its ``rate`` in bytes a microsecond.

    ``version`` counts how often its end was foretold. ``narrow`` is the link that holds it up, -1 for its own cap.
    ``pieces``: (begin, end, rate, narrow) of what has passed, if they are recorded.
    """

    __slots__ = (
        "cap",
        "connection",
        "headed",
        "left",
        "links",
        "narrow",
        "network",
        "pieces",
        "rate",
        "since",
        "step",
        "tile",
        "version",
        "wire",
    )

    def __init__(
        self, links: tuple[int, ...], cap: float, wire: float, step: int, connection: int, tile: int, network: bool
    ) -> None:
        self.links = links
        self.cap = cap
        self.rate = 0.0
        self.left = self.wire = wire
        self.since = 0.0
        self.version = 0
        self.narrow = -1
        self.headed = False
        self.step = step
        self.connection = connection
        self.tile = tile
        self.network = network
        self.pieces: list[tuple[float, float, float, int]] | None = None

    def change(self, now: float, rate: float) -> None:
        if now > self.since:
            self.left -= self.rate * (now - self.since)
            if self.pieces is not None and self.rate > 0.0:
                self.pieces.append((self.since, now, self.rate, self.narrow))
        self.since = now
        self.rate = rate
        self.version += 1


class Links:
    """All links, and the flows on each."""

    def __init__(self, bandwidths: Sequence[float]) -> None:
        """``bandwidths`` in bytes per microsecond."""
        self._most = [bandwidth * _SLACK for bandwidth in bandwidths]
        self._bandwidths = list(bandwidths)
        self._asked = [0.0] * len(bandwidths)
        self._flows: list[dict[Flow, None]] = [{} for _ in bandwidths]
        self._dirty: dict[int, None] = {}

    @property
    def dirty(self) -> bool:
        """Whether rates are to be shared out anew, by ``share``, before time goes on."""
        return bool(self._dirty)

    def add(self, flow: Flow, now: float) -> bool:
        """Whether it goes at its cap from now on; otherwise ``share`` says at what."""
        loaded = False
        asked, most = self._asked, self._most
        for link in flow.links:
            asked[link] += flow.cap
            self._flows[link][flow] = None
            if asked[link] > most[link]:
                self._dirty[link] = None
                loaded = True
        flow.since = now
        if not loaded:
            flow.change(now, flow.cap)
        return not loaded

    def remove(self, flow: Flow) -> None:
        asked, most = self._asked, self._most
        for link in flow.links:
            if asked[link] > most[link]:
                self._dirty[link] = None
            asked[link] -= flow.cap
            flows = self._flows[link]
            del flows[flow]
            if not flows:
                asked[link] = 0.0
                self._dirty.pop(link, None)

    def share(self, now: float) -> list[Flow]:
        """The flows whose rate has changed."""
        asked, most = self._asked, self._most
        links = list(self._dirty)
        seen = dict.fromkeys(links)
        self._dirty = {}
        flows: dict[Flow, None] = {}
        for link in links:
            for flow in self._flows[link]:
                if flow not in flows:
                    flows[flow] = None
                    for other in flow.links:
                        if other not in seen and asked[other] > most[other]:
                            seen[other] = None
                            links.append(other)
        changed = []
        for flow, rate, narrow in self._fill([link for link in links if asked[link] > most[link]], list(flows)):
            if rate != flow.rate:
                flow.change(now, rate)
                changed.append(flow)
            flow.narrow = narrow
        return changed

    def _fill(self, loaded: list[int], flows: list[Flow]) -> list[tuple[Flow, float, int]]:
        """Progressive filling: who reaches its cap, or fills a link with the others on it, is settled."""
        room = {link: self._bandwidths[link] for link in loaded}
        count = {link: len(self._flows[link]) for link in loaded}
        waiting = dict.fromkeys(flows)
        capped = deque(sorted(flows, key=lambda flow: flow.cap))
        settled: list[tuple[Flow, float, int]] = []
        while waiting:
            narrow, share = -1, float("inf")
            for link, users in count.items():
                if room[link] < share * users:
                    narrow, share = link, room[link] / users
            reached = []
            while capped and capped[0].cap <= share:
                reached.append(capped.popleft())
            reached = [flow for flow in reached if flow in waiting]
            if reached:
                narrow = -1
            else:
                reached = [flow for flow in self._flows[narrow] if flow in waiting]
            for flow in reached:
                rate = flow.cap if narrow < 0 else share
                settled.append((flow, rate, narrow))
                del waiting[flow]
                for link in flow.links:
                    if link in count:
                        room[link] -= rate
                        count[link] -= 1
                        if not count[link]:
                            del count[link]
        return settled
