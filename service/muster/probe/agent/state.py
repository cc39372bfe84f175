"""Rows of process.rank: the state of every rank of this node, made anew for every query."""

from __future__ import annotations

from collections.abc import Mapping
from time import time_ns
from typing import Any

from muster.probe.agent.lives import Life, long_phase
from muster.tables import PROCESS_RANK


class Cpu:
    """Newest CPU sample of a rank."""

    __slots__ = ("pct", "rss_kb")

    def __init__(self, pct: float | None = None, rss_kb: int | None = None) -> None:
        self.pct = pct
        self.rss_kb = rss_kb


def rank_row(life: Life, oldest_step: int | None, cpu: Cpu | None, in_flight: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of process.rank. `in_flight`: operations of the life in flight, oldest first. Values are on the clock of this
    host, which is also the clock of the rank."""
    now = time_ns()
    meta = life.meta
    row: dict[str, Any] = dict.fromkeys((c.name for c in PROCESS_RANK.columns), None)
    errors = sum(n for place, n in life.directory.errors().items() if not place.startswith("reader."))
    row |= {
        "rank": life.rank,
        "world_size": meta.world_size if meta else None,
        "pid": meta.pid if meta else None,
        "status": life.status,
        "as_of_ns": now,
        "started_ns": meta.started_ns if meta else None,
        "last_local_step": life.last_local_step,
        "last_global_step": life.last_global_step,
        "oldest_global_step": oldest_step,
        "median_step_s": life.median_step_s,
        "last_op": life.last.op,
        "last_pg": life.last.pg,
        "last_seq": life.last.seq,
        "step_source": meta.step_source if meta else None,
        "rows_lost": life.rows_lost,
        "recorder_errors": errors,
        "cpu_pct": cpu.pct if cpu else None,
        "rss_kb": cpu.rss_kb if cpu else None,
    }
    newest = life.last_row_ns
    row |= _in_flight(life, in_flight, now)
    starts = [r["wait_start_ns"] or r["start_ns"] for r in in_flight if life.is_main(r["thread_id"])]
    if life.alive:
        thread = life.thread()
        row |= {"state": thread.state, "wchan": thread.wchan}
        spans = life.main_spans()
        starts += [s.start_ns for s in spans]
        row |= _spans(spans, now)
    newest = max([t for t in (newest, *starts) if t is not None], default=row["started_ns"])
    row["last_row_ns"] = newest
    row["age_s"] = None if newest is None else max(0.0, (now - newest) / 1e9)
    if life.exit is not None:
        row |= {
            "exit_kind": life.exit.kind,
            "exit_code": life.exit.code,
            "exit_signal": life.exit.signal,
            "exit_message": life.exit.text,
            "exit_ns": life.exit.at_ns,
        }
    return row


def _in_flight(life: Life, in_flight: list[dict[str, Any]], now: int) -> Mapping[str, Any]:
    mine = [r for r in in_flight if life.is_main(r["thread_id"])]
    if not mine:
        return {}
    waiting = [r for r in mine if not r["async_op"] or r["wait_start_ns"] is not None]
    first = (waiting or mine)[0]
    return {
        "inflight_op": first["op"],
        "inflight_pg": first["pg_name"],
        "inflight_seq": first["seq"],
        "inflight_ranks": first["participate_ranks"],
        "inflight_peer": first["peer"],
        "inflight_age_s": max(0.0, (now - (first["wait_start_ns"] or first["start_ns"])) / 1e9),
    }


def _spans(spans: list[Any], now: int) -> Mapping[str, Any]:
    if not spans:
        return {}
    phase = long_phase(spans)
    shown = phase or spans[-1]
    return {
        "open_span": spans[-1].name,
        "open_phase": phase.phase if phase else None,
        "open_span_age_s": max(0.0, (now - shown.start_ns) / 1e9),
    }
