"""Texts that belong to no diagnosis, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.diagnosis.phase import Snapshot
from muster.diagnosis.schema import Lang
from muster.diagnosis.template import seconds
from muster.model import Coverage, Finding, Phase, Severity, Status

MAX_LINE = 400
_STATUS: Mapping[Lang, Mapping[Status, str]] = {
    "en": {s: s.value.upper() for s in Status},
    "zh": {Status.PASS: "正常", Status.UNKNOWN: "未知", Status.WARN: "警告", Status.FAIL: "失败"},
}
_PHASE: Mapping[Lang, Mapping[Phase, str]] = {
    "en": {p: p.value for p in Phase},
    "zh": {
        Phase.STARTING: "启动中", Phase.RUNNING: "运行中", Phase.CHECKPOINT: "写检查点", Phase.EVAL: "评估中",
        Phase.FINISHED: "已结束", Phase.FAILED: "已失败", Phase.SUSPENDED: "已暂停",
    },
}  # fmt: skip
_WORDS: Mapping[Lang, Mapping[str, str]] = {
    "en": {
        "answered": "{a} of {n} ranks answered", "more": " (and {n} more)", "step": "step {step}", "pace": "{pace} a step",
        "step_failed": "The step {step} failed: {error}", "statement_failed": "{name} could not be computed: {error}",
        "not_recorded": "Not recorded on any rank: {tables}. {how}",
        "no_such_table": "See /jobs/{{job}}/tables for what there is.",
        "coordinator": "Only the coordinator (rank 0) was asked: use_global is false.",
        "allowed": "Ranks are missing, but no more than min_coverage={min} allows: {share} are covered.",
        "history": "The ranks together remember no further back than step {step}.",
        "rests_on": "It rests on {a} of {n} ranks.",
        "status": "status", "job": "job", "findings": "findings", "none": "none",
        "blamed": "culprits", "concerned": "ranks", "victims": "victims", "checks": "checks",
        "recommendation": "recommendation",
        "checkpoint": "last checkpoint", "ago": "{age} ago",
        "notes": "notes", "coverage": "coverage", "generation": "generation", "next": "look next at",
    },
    "zh": {
        "answered": "{n} 个 rank 中有 {a} 个应答", "more": "（另有 {n} 条）", "step": "第 {step} 步", "pace": "每步 {pace}",
        "step_failed": "步骤 {step} 失败：{error}", "statement_failed": "无法计算 {name}：{error}",
        "not_recorded": "没有任何 rank 记录 {tables}。{how}",
        "no_such_table": "现有的表见 /jobs/{{job}}/tables。",
        "coordinator": "只询问了协调者（rank 0）：use_global 为 false。",
        "allowed": "有 rank 缺失，但未超过 min_coverage={min} 的容许范围：覆盖 {share}。",
        "history": "所有 rank 共同的记录最早只到第 {step} 步。",
        "rests_on": "仅依据 {n} 个 rank 中的 {a} 个。",
        "status": "状态", "job": "任务", "findings": "发现", "none": "无",
        "blamed": "肇因", "concerned": "相关 rank", "victims": "受害者",
        "checks": "检查", "recommendation": "建议", "checkpoint": "最近的检查点", "ago": "{age} 前",
        "notes": "备注", "coverage": "覆盖", "generation": "代次", "next": "下一步查看",
    },
}  # fmt: skip


def say(lang: Lang, key: str, **values: object) -> str:
    """A fixed text with its values."""
    return _WORDS[lang][key].format(**values)


def status_name(lang: Lang, status: Status) -> str:
    return _STATUS[lang][status]


def phase_name(lang: Lang, phase: Phase) -> str:
    return _PHASE[lang][phase]


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """Text from anywhere as one printable line."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def summary(
    lang: Lang, status: Status, now: Snapshot, findings: Sequence[Finding], coverage: Coverage, blind: str | None
) -> str:
    """One line that a pager can show. `blind` says why the status is unknown where no finding does."""
    loud = [f for f in findings if f.severity is not Severity.INFO]
    parts = []
    if loud:
        parts.append(loud[0].message + (say(lang, "more", n=len(loud) - 1) if len(loud) > 1 else ""))
    elif blind and status is Status.UNKNOWN:
        parts.append(blind)
    parts.append(say(lang, "answered", a=coverage.answered, n=coverage.world_size))
    if now.step is not None:
        parts.append(say(lang, "step", step=now.step))
    if now.median_step_s is not None and not loud:
        parts.append(say(lang, "pace", pace=seconds(now.median_step_s)))
    comma, semicolon, colon = ("，", "；", "：") if lang == "zh" else (", ", "; ", ": ")
    head = f"{status_name(lang, status)}{comma}{phase_name(lang, now.phase)}{colon}"
    return one_line(head + (semicolon if loud or blind else comma).join(parts))
