"""One dump of torch's flight recorder: its entries and process groups, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from muster.errors import BadRequest, TooLarge

MAX_ENTRIES = 200_000
MAX_GROUPS = 100_000
MAX_TEXT = 64 << 10
MAX_TEXT_OF_A_DUMP = 256 << 20
MAX_FRAMES = 128
_INT64 = 1 << 63
Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry, as columns of python.torch_nccl_flight_record, and what the time of the dump is told from."""

    columns: Mapping[str, Any]
    under_way: bool
    time_created_ns: int
    timeout_ms: int
    times_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dump:
    """`highest_ranks`: the highest global rank of every process group that the dump describes."""

    entries: tuple[Entry, ...]
    status: tuple[Status, ...]
    highest_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    name: str | None
    desc: str | None
    ranks: str | None


def dump_of(content: Any, what: str) -> Dump:
    """A dump from plain data. `what` names it in errors. Raises BadRequest for what is none, TooLarge for too much."""
    reader = _Reader(what)
    body = reader.mapping(content, "the dump")
    version = str(body.get("version", "")).split(".")
    if version[0] != "2":
        raise BadRequest(
            f"{what} has the format {'.'.join(version)[:20] or 'of no version'}; this reads 2.0 to 2.10.",
            hint="Give a dump of torch 2.3 or later.",
        )
    raw = reader.sequence(body.get("entries") or [], "entries", MAX_ENTRIES)
    config = {
        reader.text(k, "pg_config") or "": _Group(
            reader.text(v.get("name"), "name"), reader.text(v.get("desc"), "desc"), reader.members(v.get("ranks"))
        )
        for k, v in reader.mappings(body.get("pg_config") or {}, "pg_config").items()
    }
    entries, named = [], {}
    for given in raw:
        entry = reader.entry(reader.mapping(given, "an entry"), config)
        entries.append(entry)
        pg_id = entry.columns["pg_id"]
        if pg_id is not None:
            named[pg_id] = _Group(*(entry.columns[c] for c in ("pg_name", "pg_desc", "pg_ranks")))
    counters = {
        reader.count(k, "pg_status"): v for k, v in reader.mappings(body.get("pg_status") or {}, "pg_status").items()
    }
    groups = _by_local_id([k for k in counters if k is not None], config, named)
    status = [
        {
            "pg_id": k, "pg_name": groups[k].name, "pg_desc": groups[k].desc, "ranks": groups[k].ranks,
            **{c: reader.count(v.get(c), c) for c in _COUNTERS},
        }
        for k, v in counters.items()
        if k is not None
    ]  # fmt: skip
    highest = [max(orjson.loads(g.ranks), default=0) for g in config.values() if g.ranks]
    return Dump(tuple(entries), tuple(status), tuple(highest))


_COUNTERS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def _by_local_id(ids: Sequence[int], config: Mapping[str, _Group], named: Mapping[int, _Group]) -> dict[int, _Group]:
    """Which group a number of `pg_status` is."""
    unknown = _Group(None, None, None)
    if len(ids) == len(config) and all(name.isascii() and name.isdigit() for name in config):
        ordered = dict(zip(sorted(ids), (config[n] for n in sorted(config, key=int)), strict=True))
        if all(ordered.get(i, unknown).name == g.name for i, g in named.items()):
            return ordered
    return {i: named.get(i, unknown) for i in ids}


class _Reader:
    """Checked access to what a dump holds, with one budget of text for all of it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._left = MAX_TEXT_OF_A_DUMP

    def entry(self, given: Mapping[Any, Any], config: Mapping[str, _Group]) -> Entry:
        group = given.get("process_group")
        if group is None:
            group = (given.get("pg_name"), given.get("pg_desc"))
        pair = [self.text(part, "process_group") for part in self.sequence(group, "process_group", 4)]
        name, desc = (*pair, None, None)[:2]
        known = config.get(name or "")
        ranks = known.ranks if known is not None and known.name == name else None
        created, started, completed = (
            self.count(given.get(f"time_{n}_ns"), n) or None
            for n in ("created", "discovered_started", "discovered_completed")
        )
        state = self.text(given.get("state"), "state")
        retired = bool(given.get("retired"))
        timeout_ms = self.count(given.get("timeout_ms"), "timeout_ms")
        duration = given.get("duration_ms")
        frames = [
            {k: f.get(k) for k in ("name", "filename", "line")}
            for f in (self.mapping(f, "a frame") for f in self.sequence(given.get("frames") or [], "frames", MAX_FRAMES))
        ]
        columns = {
            **{n: self.count(given.get(n), n) for n in ("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id")},
            "pg_name": name, "pg_desc": desc, "pg_ranks": ranks,
            "profiling_name": self.text(given.get("profiling_name"), "profiling_name"), "state": state,
            **{n: self.json(given.get(n), n) for n in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")},
            "time_created_ns": created, "time_discovered_started_ns": started, "time_discovered_completed_ns": completed,
            "duration_ns": int(duration * 1e6) if isinstance(duration, int | float) and 0 <= duration < 1e12 else None,
            "timeout_ms": timeout_ms, "retired": int(retired), "is_p2p": int(bool(given.get("is_p2p"))),
            "frames": self.json(frames, "frames") if frames else None,
            "top_frame": self.top(frames[0]) if frames else None,
        }  # fmt: skip
        under_way = state != "completed" and not retired
        return Entry(
            columns, under_way, created or 0, timeout_ms or 0, tuple(t for t in (created, started, completed) if t)
        )

    def top(self, frame: Mapping[str, Any]) -> str:
        """A frame as one line."""
        file = (self.text(frame["filename"], "a frame") or "?").rpartition("/")[2]
        return f"{self.text(frame['name'], 'a frame')} ({file}:{frame['line']})"

    def mapping(self, value: Any, what: str) -> Mapping[Any, Any]:
        if not isinstance(value, dict):
            raise self._wrong(what, "a mapping")
        return value

    def mappings(self, value: Any, what: str) -> dict[Any, Mapping[Any, Any]]:
        found = self.mapping(value, what)
        if len(found) > MAX_GROUPS:
            raise TooLarge(f"{what} in {self._what} has {len(found):,} groups, at most {MAX_GROUPS:,}.")
        return {k: self.mapping(v, what) for k, v in found.items()}

    def sequence(self, value: Any, what: str, most: int) -> Sequence[Any]:
        if not isinstance(value, list | tuple):
            raise self._wrong(what, "a list")
        if len(value) > most:
            raise TooLarge(f"{what} in {self._what} has {len(value):,} elements, at most {most:,}.")
        return value

    def count(self, value: Any, what: str) -> int | None:
        """A whole number, also as text, as JSON dumps have it."""
        if isinstance(value, str) and value.lstrip("-").isascii() and value.lstrip("-").isdigit() and len(value) < 20:
            value = int(value)
        if value is None or (type(value) is int and -_INT64 <= value < _INT64):
            return value
        raise self._wrong(what, "a whole number")

    def text(self, value: Any, what: str) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self._wrong(what, "a short text")
        self._spend(len(value))
        return value

    def json(self, value: Any, what: str) -> str | None:
        """A list of a dump, as JSON text."""
        if value is None:
            return None
        self._weigh(value, what, 3)
        try:
            return orjson.dumps(value).decode()
        except (TypeError, orjson.JSONEncodeError):
            raise self._wrong(what, "plain data") from None

    def members(self, value: Any) -> str | None:
        """Global ranks of a group, written as "[0, 1]"."""
        if value is None or value == "":
            return None
        self._spend(len(value) if isinstance(value, str | list) else 0)
        try:
            ranks = orjson.loads(value) if isinstance(value, str) else list(value)
        except (orjson.JSONDecodeError, TypeError):
            raise self._wrong("ranks", "a list of ranks") from None
        if not isinstance(ranks, list) or not all(type(r) is int and 0 <= r < _INT64 for r in ranks):
            raise self._wrong("ranks", "a list of ranks")
        return "[" + ", ".join(map(str, ranks)) + "]"

    def _weigh(self, value: Any, what: str, depth: int) -> None:
        if isinstance(value, list | tuple | dict):
            if depth == 0:
                raise self._wrong(what, "a flat list")
            self._spend(8 * len(value))
            for part in value.values() if isinstance(value, dict) else value:
                self._weigh(part, what, depth - 1)
        elif isinstance(value, str | bytes):
            self._spend(len(value))

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                f"{self._what} unfolds to more than {MAX_TEXT_OF_A_DUMP:,} bytes.",
                hint="Make the recorder's buffer smaller.",
            )

    def _wrong(self, what: str, wanted: str) -> BadRequest:
        return BadRequest(
            f"{self._what} is no dump of the flight recorder: {what} is not {wanted}.",
            hint="Give the dump as torch wrote it. Without it, move it away: its rank then counts as one without a dump.",
        )
