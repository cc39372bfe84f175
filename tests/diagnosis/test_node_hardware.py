"""What is evidence against a node, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from diagnosis.conftest import Evaluate
from diagnosis.histories import NOW_NS, Cluster, History, dead, running, waiting
from diagnosis.steps import assert_steps_equal_one_duckdb, check, loud, named, only
from muster.diagnosis.catalogue import DiagnosisCatalogue
from muster.model import Kind, RankStatus, Severity, Status

ID = ("node_hardware",)
NOW_US = NOW_NS // 1000
FATAL = "NVRM: Xid (PCI:0000:b3:00): 79, pid=1234, GPU has fallen off the bus."


def watched() -> History:
    """Six ranks on three nodes; kernel log, devices and ports are watched and quiet."""
    history = running(6, steps=60)
    history.rows |= {"process.kmsg": {}, "gpu.utilization": {}, "gpu.devices": {}, "rdma.mlx_hca": {}}
    for node in range(3):
        kernel(history, node, "eth0: promiscuous mode enabled")
        for device in range(2):
            history.rows["gpu.devices"].setdefault(node, []).append(
                {"device_id": device, "uuid": f"GPU-{node}-{device}", "pci_bus_id": f"00000000:B{3 + device}:00.0"}
            )
            for i in range(10):
                sample(history, node, device, ago_s=10 * i)
        for i in range(4):
            port(history, node, ago_s=10 * i)
    return history


def kernel(history: History, node: int, message: str, ago_s: float = 20.0) -> None:
    row = {"timestamp": NOW_US - int(ago_s * 1e6), "facility": "kern", "level": "err", "message": message}
    history.rows["process.kmsg"].setdefault(node, []).append(row)


def sample(history: History, node: int, device: int, *, ago_s: float, **more: Any) -> None:
    row = {
        "ts": NOW_US - int(ago_s * 1e6), "backend": "cuda", "device_id": device, "name": "H200", "temperature_c": 60.0,
        "throttle_reasons": "sw_power_cap", "ecc_uncorrected": 0,
    }  # fmt: skip
    history.rows["gpu.utilization"].setdefault(node, []).append(row | more)


def port(history: History, node: int, *, ago_s: float, **more: Any) -> None:
    row = {"ts": NOW_NS - int(ago_s * 1e9), "hca_name": "mlx5_0", "port": 1, "link_downed": 3, "port_xmit_packets": 100}
    history.rows["rdma.mlx_hca"].setdefault(node, []).append(row | more)


def test_quiet_nodes_pass(evaluate: Evaluate) -> None:
    e = evaluate(watched(), ids=ID)
    assert (e.status, loud(e), e.drain_candidates) == (Status.PASS, [], ())
    assert {c.status for c in e.checks} == {Status.PASS}
    assert e.waves == 2


def test_a_failed_device_is_a_reason_to_drain_its_host_alone(evaluate: Evaluate) -> None:
    history = watched()
    kernel(history, 1, FATAL)
    e = evaluate(history, ids=ID)
    found = only(e)
    assert (found.id, found.hosts, found.ranks, found.kind) == ("xid", ("n1",), (2, 3), Kind.NODE)
    assert "GPU-1-0" in found.message
    assert [(c.host, c.action, c.reason_code) for c in e.drain_candidates] == [("n1", "drain", "xid")]
    assert e.recommendation == "drain"
    assert [row[0] for row in found.evidence.rows] == ["n1"]


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_what_a_program_causes_is_no_evidence_against_the_node(evaluate: Evaluate, code: int) -> None:
    history = watched()
    kernel(history, 1, f"NVRM: Xid (PCI:0000:b3:00): {code}, pid=1002, name=python, Ch 00000008")
    e = evaluate(history, ids=ID)
    assert (e.status, loud(e), e.drain_candidates) == (Status.PASS, [], ())
    assert named(e, "xid_program").kind is Kind.CODE


@pytest.mark.parametrize("code", [63, 94, 999])
def test_a_code_that_does_not_decide_is_a_reason_to_inspect(evaluate: Evaluate, code: int) -> None:
    history = watched()
    kernel(history, 1, f"NVRM: Xid (PCI:0000:b3:00): {code}, pid='<unknown>'")
    e = evaluate(history, ids=ID)
    assert only(e).severity is Severity.WARN
    assert [(c.host, c.action) for c in e.drain_candidates] == [("n1", "inspect")]


@pytest.mark.parametrize(
    ("message", "id", "severity", "action"),
    [
        ("mce: [Hardware Error]: Machine check events logged, uncorrected", "memory_errors", Severity.FAIL, "drain"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "memory_errors", Severity.FAIL, "drain"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "memory_errors", Severity.INFO, None),
        ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received", "bus_errors", Severity.WARN, "inspect"),
        ("mlx5_core 0000:17:00.0 ens1f0: Link down", "link_down", Severity.FAIL, "drain"),
        ("CPU12: Package temperature above threshold, cpu clock throttled", "throttled", Severity.WARN, "inspect"),
        ("blk_update_request: I/O error, dev sda, sector 12", "disk_errors", Severity.WARN, None),
        ("oom-kill:constraint=CONSTRAINT_MEMCG, task=python, pid=1002", "out_of_memory", Severity.WARN, None),
    ],
)
def test_each_kind_of_message(evaluate: Evaluate, message: str, id: str, severity: Severity, action: str | None) -> None:
    history = watched()
    kernel(history, 1, message)
    e = evaluate(history, ids=ID)
    found = named(e, id)
    assert (found.severity, found.hosts) == (severity, ("n1",))
    assert [c.action for c in e.drain_candidates] == ([action] if action else [])


@pytest.mark.parametrize(
    "message",
    [
        "veth12ab: link is down", "docker0: port 1(veth9) link down", "IPv6: eth1: link is not ready",
        "pcieport 0000:00:01.0: AER: Corrected error received", "python[1002]: hello",
    ],
)  # fmt: skip
def test_what_is_no_fault_is_silent(evaluate: Evaluate, message: str) -> None:
    history = watched()
    kernel(history, 1, message)
    e = evaluate(history, ids=ID)
    assert (e.status, loud(e), e.drain_candidates) == (Status.PASS, [], ())


def test_a_link_that_came_back_is_inspected_and_not_drained(evaluate: Evaluate) -> None:
    history = watched()
    kernel(history, 1, "mlx5_core 0000:17:00.0 ens1f0: Link down", ago_s=30)
    kernel(history, 1, "mlx5_core 0000:17:00.0 ens1f0: Link up", ago_s=10)
    e = evaluate(history, ids=ID)
    assert "up again" in only(e).message
    assert [c.action for c in e.drain_candidates] == ["inspect"]


def test_messages_from_before_the_job_do_not_count(evaluate: Evaluate) -> None:
    history = watched()
    kernel(history, 1, FATAL, ago_s=86_400)
    assert evaluate(history, ids=ID).status is Status.PASS
    assert evaluate(history, ids=ID, look_back_s=100_000).status is Status.FAIL


def test_memory_errors_that_grow_are_a_fault_and_old_ones_are_told(evaluate: Evaluate) -> None:
    history = watched()
    for i in range(10):
        sample(history, 2, 5, ago_s=10 * i, ecc_uncorrected=4)
    e = evaluate(history, ids=ID)
    assert (e.status, named(e, "device_memory_errors").severity) == (Status.PASS, Severity.INFO)
    sample(history, 2, 5, ago_s=1, ecc_uncorrected=6)
    e = evaluate(history, ids=ID)
    assert (only(e).hosts, only(e).ranks) == (("n2",), (4, 5))
    assert [c.action for c in e.drain_candidates] == ["drain"]


def test_clocks_lowered_by_hardware_are_told_and_those_by_power_cap_are_not(evaluate: Evaluate) -> None:
    history = watched()
    for i in range(10):
        sample(history, 0, 7, ago_s=10 * i, throttle_reasons="hw_thermal_slowdown" if i < 5 else None, temperature_c=96.0)
    e = evaluate(history, ids=ID)
    assert (only(e).id, only(e).hosts) == ("device_throttled", ("n0",))
    assert "50 %" in only(e).message
    assert named(e, "device_hot").severity is Severity.INFO


def test_a_port_whose_link_went_down_is_told(evaluate: Evaluate) -> None:
    history = watched()
    port(history, 1, ago_s=1, link_downed=4)
    assert (only(evaluate(history, ids=ID)).id, only(evaluate(history, ids=ID)).hosts) == ("port_flaps", ("n1",))


def gone(history: History, node: int) -> None:
    history.down = {node}
    for rank in history.present(node):
        history.roster[rank] = RankStatus.STALE


def test_a_host_that_is_gone_while_others_wait_for_it(evaluate: Evaluate) -> None:
    history = watched()
    waiting(history, [0, 1, 2, 3], 100)
    gone(history, 2)
    e = evaluate(history, ids=ID)
    found = named(e, "host_gone")
    assert (found.hosts, found.ranks, found.victims, found.confidence) == (("n2",), (4, 5), (0, 1, 2, 3), "high")
    assert [(c.host, c.action) for c in e.drain_candidates] == [("n2", "drain")]


def test_an_agent_that_is_gone_while_the_job_moves_is_no_evidence(evaluate: Evaluate) -> None:
    history = watched()
    gone(history, 2)
    e = evaluate(history, ids=ID)
    assert (e.status, loud(e), e.drain_candidates) == (Status.UNKNOWN, [], ())


def test_ranks_that_died_are_no_evidence_against_their_host(evaluate: Evaluate) -> None:
    history = watched()
    for rank in (4, 5):
        dead(history, rank)
    e = evaluate(history, ids=ID)
    assert (loud(e), e.drain_candidates) == ([], ())


def test_without_a_kernel_log_it_cannot_pass(evaluate: Evaluate) -> None:
    e = evaluate(running(6, steps=60), ids=ID)
    assert e.status is Status.UNKNOWN
    gates = {c.name: c.gate for c in e.checks}
    assert gates == {"hosts": None, "kernel": "not_recorded", "devices": "not_recorded", "ports": "not_recorded"}
    assert all(s.error is None for s in e.steps)


def test_one_of_the_tables_is_enough_to_find_what_it_shows(evaluate: Evaluate) -> None:
    history = running(6, steps=60)
    history.rows["process.kmsg"] = {}
    kernel(history, 1, FATAL)
    e = evaluate(history, ids=ID)
    assert e.status is Status.FAIL
    assert check(e, "devices").gate == "not_recorded"


def test_a_table_without_samples_is_no_pass(evaluate: Evaluate) -> None:
    history = watched()
    history.rows["gpu.utilization"] = {}
    assert check(evaluate(history, ids=ID), "devices").gate == "no_samples"


def test_the_texts_exist_in_chinese(evaluate: Evaluate) -> None:
    history = watched()
    kernel(history, 1, FATAL)
    assert "故障" in only(evaluate(history, ids=ID, lang="zh")).message


@pytest.mark.parametrize("down", [(), (1,)])
def test_all_steps_equal_one_duckdb(
    evaluate: Evaluate, catalogue: DiagnosisCatalogue, cluster: Cluster, down: tuple[int, ...]
) -> None:
    history = watched()
    for node in range(3):
        kernel(history, node, FATAL, ago_s=node)
        for i in range(3):
            sample(history, node, 9, ago_s=400 * i, throttle_reasons="hw_slowdown", ecc_uncorrected=i)
            port(history, node, ago_s=i, link_downed=i)
    history.down = set(down)
    assert_steps_equal_one_duckdb(evaluate(history, ids=ID), catalogue, cluster, history)
