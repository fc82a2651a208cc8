"""Which topologies there are, how they stand, and whom to ask about each.

Everybody who has a page open shares one look at the home, and one connection to each driver.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from waterspout._causes import told
from waterspout._config import Config
from waterspout.coordination.commands.outside import Sight, looked_at
from waterspout.coordination.commands.sights import done, remark, resumes, runs, span, why
from waterspout.errors import WaterspoutError
from waterspout.ui._sources import FactSource, LiveSource, NotAnswered
from waterspout.ui._stored import StoredSource

__all__ = ["Directory", "Listed", "Listing", "listed"]

_FRESH_S = 1.0
_ENDED = ("stopped", "failed", "dead", "damaged", "never run")


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the list."""

    name: str
    status: str
    """As `waterspout list` says it: running, idle, stopped, dead..."""
    url: str = ""
    """Where its run is served, if it is."""
    remark: str = ""
    """What is to be said behind the status: who deactivated it, what is damaged."""
    done: str = ""
    in_flight: str = ""
    up: str = ""
    driver: str = ""
    resumes: tuple[str, ...] = ()
    """What a restart would go on with."""
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nobody runs it now."""
        return self.status in _ENDED


@dataclass(frozen=True, slots=True)
class Listing:
    """The list, when it was made, and why it could not be made if it was not."""

    topologies: tuple[Listed, ...] = ()
    problem: str = ""
    at: float = field(default_factory=time.time)


class Directory:
    """The topologies of a home or a ZooKeeper, and of servers that were named besides."""

    def __init__(
        self,
        conf: Config,
        servers: Sequence[str] = (),
        *,
        token: str | None = None,
        look: Callable[[Config], list[Sight]] = looked_at,
        live: Callable[..., LiveSource] = LiveSource,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conf = conf
        self._servers = tuple(servers)
        self._token = token
        self._look = look
        self._live = live
        self._clock = clock
        self._lock = asyncio.Lock()
        self._looked: tuple[float, dict[str, Sight], Listing] | None = None
        self._sources: dict[str, FactSource] = {}
        self._names: dict[str, str] = {}  # by server: whom it has served

    @property
    def where(self) -> str:
        """What is looked at, for people."""
        if self._conf.zookeeper_servers is not None:
            servers = ", ".join(self._conf.zookeeper_servers)
            return f"ZooKeeper {servers}, under {self._conf.zookeeper_root}"
        return str(self._conf.home_path().absolute())

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that were named beside the home."""
        return self._servers

    async def listing(self) -> Listing:
        """Return all topologies, as of a second ago at most."""
        return (await self._seen())[1]

    async def find(self, name: str) -> Listed | None:
        """Return a topology by its name."""
        found = (await self.listing()).topologies
        return next((each for each in found if each.name == name), None)

    async def source(self, name: str) -> FactSource:
        """Return whom to ask about a topology: its run if that is served, else what is stored."""
        listed = await self.find(name)
        if listed is None:
            raise NotAnswered("absent", f"there is no topology {name!r} in {self.where}")
        key = listed.url or f"stored {name}"
        if key not in self._sources:
            self._sources[key] = (
                self._live(name, listed.url, self._token)
                if listed.url
                else StoredSource(
                    name, self._conf, self.where, lambda: self._sight(name), token=self._token
                )
            )
        return self._sources[key]

    async def close(self) -> None:
        """Give all connections up."""
        for source in self._sources.values():
            await source.close()
        self._sources.clear()

    async def _sight(self, name: str) -> Sight | None:
        return (await self._seen())[0].get(name)

    async def _seen(self) -> tuple[dict[str, Sight], Listing]:
        async with self._lock:  # whoever comes meanwhile has what is found now
            if self._looked is None or self._clock() >= self._looked[0] + _FRESH_S:
                sights, problem = await asyncio.to_thread(self._look_around)
                rows = {name: listed(sight, time.time()) for name, sight in sights.items()}
                await self._add_served(rows)
                found = sorted(rows.values(), key=lambda row: row.name)
                self._looked = self._clock(), sights, Listing(tuple(found), problem)
            return self._looked[1:]

    def _look_around(self) -> tuple[dict[str, Sight], str]:
        try:
            return {sight.name: sight for sight in self._look(self._conf)}, ""
        except (WaterspoutError, OSError) as error:
            return {}, told(error)

    async def _add_served(self, rows: dict[str, Listed]) -> None:
        """Add the runs that were named by their servers to the lines of the home."""
        known = {row.url for row in rows.values()}
        for url in self._servers:
            if url in known:
                continue
            server = self._sources.setdefault(f"server {url}", self._live(url, url, self._token))
            try:
                row = _answered(url, await server.get("topology"))
            except NotAnswered as error:
                # A driver that is gone is told of by what it has left in the home.
                if self._names.get(url) not in rows:
                    name = self._names.get(url, url)
                    rows[name] = Listed(name, "unreachable", url, error=str(error))
                continue
            self._names[url] = row.name
            home = rows.get(row.name)
            rows[row.name] = row if home is None else replace(home, url=url, status=row.status)


def listed(sight: Sight, now: float) -> Listed:
    """Return the line of a topology that is in the home or in ZooKeeper."""
    living = runs(sight)
    url = str(sight.published.get("server_url") or "") if living else ""
    started = sight.published.get("started")
    up = span(now - started) if living and isinstance(started, int | float) else ""
    return Listed(
        sight.name,
        sight.status,
        url=url.rstrip("/"),
        remark=why(sight).lstrip(": ").strip(),
        done=done(sight),
        in_flight=f"{len(sight.snapshot.get('in_flight') or ()):,}" if living else "",
        up=up,
        driver=sight.driver,
        resumes=tuple(text for _, text in resumes(sight)),
        error="" if sight.problem else remark(sight),
    )


def _answered(url: str, topology: Mapping[str, Any]) -> Listed:
    """Return the line of a run that was named by its address."""
    uptime = topology.get("uptime_s")
    driver = topology.get("driver")
    if isinstance(driver, Mapping):
        driver = f"process {driver.get('pid')} on {driver.get('host')}"
    return Listed(
        str(topology.get("name", url)),
        str(topology.get("status", "")),
        url=url.rstrip("/"),
        up=span(uptime) if isinstance(uptime, int | float) else "",
        driver=str(driver or ""),
    )
