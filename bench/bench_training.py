"""What recording costs a training job, and each operation in it.

    python bench/bench_training.py [--ranks 2] [--steps 400] [--compute-ms 18] [--compute busy] [--json]

Job: real torchrun ranks on gloo run a loop of about 20 ms a step. Steps with and without recording take turns in random
order (the hooks stay and call through), and their medians are compared. Control: the difference between two halves of the
steps without recording; a cost below it cannot be told from the machine's noise.
Operation: the same call in one process, without hooks, with hooks that call through, and recorded; CPU time of the calling
thread, best of several repeats: everything is warm, while in a job the caches hold other things (a few times slower).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

MODES = {"plain": "10 all_reduce calls", "ddp": "DistributedDataParallel", "fsdp": "fully_shard, 2 layers and root"}
REPEATS = 7
WARM_UP = 20
WITHOUT, AGAIN, RECORDED = KINDS = ("without", "without again", "recorded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--compute-ms", type=float, default=18.0)
    parser.add_argument("--compute", choices=["busy", "sleep"], default="busy", help="sleep: the CPU idles, all is cold")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", choices=["operations", *MODES], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "operations":
        print(json.dumps(operations()))
    elif args.part:
        job(args)
    else:
        report(args)


def report(args: argparse.Namespace) -> None:
    """Run the parts, each in processes of its own, and print."""
    passed = [f"--{n.replace('_', '-')}={getattr(args, n)}" for n in ("steps", "compute_ms", "compute")]
    jobs = {}
    for mode in MODES:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.ranks}"]
        jobs[mode] = child([*launcher, __file__, f"--part={mode}", *passed])
    calls = child([__file__, "--part=operations"])
    if args.json:
        print(json.dumps({"jobs": jobs, "operations_us": calls}))
        return
    print(f"{args.ranks} ranks, gloo, {args.steps} steps, {args.compute_ms} ms of compute ({args.compute}) in each\n")
    print(f"{'loop':38}{'ms/step':>9}{'recorded':>10}{'costs':>8}{'control':>9}{'CPU µs':>9}{'control':>9}")
    for mode, r in jobs.items():
        wall, cpu = r["wall_ms"], r["cpu_us"]
        print(
            f"{mode + ': ' + MODES[mode]:38}{wall['without']:9.2f}{wall['recorded']:10.2f}"
            f"{wall['costs'] / wall['without']:8.2%}{wall['control'] / wall['without']:9.2%}"
            f"{cpu['costs']:+9.0f}{cpu['control']:9.0f}"
        )
    print(f"\n{'operation (1 rank), CPU µs':48}{'without':>9}{'hooks off':>11}{'recorded':>10}{'costs':>8}")
    for name, c in calls.items():
        print(f"{name:48}{c['without']:9.2f}{c['off']:11.2f}{c['recorded']:10.2f}{c['recorded'] - c['without']:8.2f}")


def child(words: list[str]) -> Any:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MUSTER_")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words], env=env, stdout=subprocess.PIPE, text=True, timeout=400, check=True
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


class Recording:
    """A recording into a directory of its own, in shared memory if there is any."""

    def __init__(self, collect: str = "torch") -> None:
        self.collect = collect

    def __enter__(self) -> None:
        import muster.probe

        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = tempfile.mkdtemp(prefix="muster-bench-", dir=base)
        if not muster.probe.start(job="bench", directory=self.directory, collect=self.collect):
            raise SystemExit(f"not recording: {muster.probe.errors()}")

    def __exit__(self, *_: object) -> None:
        import muster.probe

        errors = muster.probe.errors()
        muster.probe.stop()
        shutil.rmtree(self.directory)
        if errors:
            raise SystemExit(f"the recorder counted errors: {errors}")


def job(args: argparse.Namespace) -> None:
    """One rank: steps that are recorded and steps that are not, in an order that is the same on all ranks."""
    import torch.distributed as dist

    import muster.probe

    dist.init_process_group("gloo")
    order = random.Random(0)
    walls: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with Recording():
        recorder: Any = muster.probe.current()
        step = training(args)
        for number in range(args.steps + WARM_UP):
            kind = order.choice(KINDS)
            recorder.active = kind == RECORDED
            began, began_cpu = time.perf_counter(), time.thread_time()
            step()
            if number >= WARM_UP:
                walls[kind].append(time.perf_counter() - began)
                cpu[kind].append(time.thread_time() - began_cpu)
        recorder.active = True
    if dist.get_rank() == 0:
        print(json.dumps({"wall_ms": compared(walls, 1e3), "cpu_us": compared(cpu, 1e6)}), flush=True)
    dist.destroy_process_group()


def compared(values: dict[str, list[float]], scale: float) -> dict[str, float]:
    """Medians: without recording, with it, the difference, and that between the two halves without (the noise)."""
    without, again, recorded = (median(values[kind]) * scale for kind in KINDS)
    both = median(values[WITHOUT] + values[AGAIN]) * scale
    return {"without": both, "recorded": recorded, "costs": recorded - both, "control": abs(again - without)}


def training(args: argparse.Namespace) -> Callable[[], None]:
    """A training step of the loop asked for."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    model: nn.Module = inner
    if args.part == "ddp":
        model = nn.parallel.DistributedDataParallel(inner)
    elif args.part == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(inner[0], mesh=mesh)
        fully_shard(inner[2], mesh=mesh)
        model = fully_shard(inner, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = iter(torch.utils.data.DataLoader(torch.randn(16 * (args.steps + WARM_UP), 64), batch_size=16))
    gradient = torch.ones(4096)
    square = torch.randn(128, 128)

    def compute() -> None:
        end = time.perf_counter() + args.compute_ms / 1e3
        if args.compute == "sleep":
            time.sleep(args.compute_ms / 1e3)
        while time.perf_counter() < end:
            torch.mm(square, square)

    def step() -> None:
        x = next(batches)
        compute()
        model(x).square().mean().backward()
        if args.part == "plain":
            for _ in range(10):
                dist.all_reduce(gradient)
        optimizer.step()
        optimizer.zero_grad()

    return step


def operations() -> dict[str, Any]:
    """µs of each operation without hooks, with hooks that are off, and recorded."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    results: dict[str, Any] = {}
    for name, make in CALLS.items():
        without = best(make())
        with Recording():
            import muster.probe

            call = make()
            recorded = best(call)
            recorder: Any = muster.probe.current()
            recorder.active = False
            off = best(call)
            recorder.active = True
        results[name] = {"without": without, "off": off, "recorded": recorded}
    results["a collective that does nothing (the hook alone)"] = hook_alone()
    dist.destroy_process_group()
    return results


def best(call: Callable[[], Any], number: int = 300) -> float:
    """Least of the means of several repeats, in µs of CPU time of the calling thread: gloo's own threads fall asleep
    between calls, and how long they take to wake up says nothing of what a call costs."""
    means = []
    for _ in range(REPEATS):
        began = time.thread_time()
        for _ in range(number):
            call()
        means.append((time.thread_time() - began) / number)
    return min(means) * 1e6


def hook_alone() -> dict[str, float]:
    """What is put around a call, without what gloo's threads do to the caches in between."""
    import torch
    import torch.distributed.distributed_c10d as c10d

    import muster.probe
    from muster.probe.collectors.collectives import Collectives
    from muster.probe.collectors.ops import SPECS
    from muster.probe.collectors.works import Works

    def nothing(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:
        pass

    t = torch.ones(1024)
    with Recording("none"):
        recorder: Any = muster.probe.current()
        hook = Collectives(recorder, c10d, Works(recorder)).wrap(nothing, "all_reduce", SPECS["all_reduce"])
        recorded = best(lambda: hook(t), 3000)
        recorder.active = False
        off = best(lambda: hook(t), 3000)
        recorder.active = True
    return {"without": best(lambda: nothing(t), 3000), "off": off, "recorded": recorded}


def _all_reduce() -> Callable[[], Any]:
    import torch
    import torch.distributed as dist

    t = torch.ones(1024)
    return lambda: dist.all_reduce(t)


def _async() -> Callable[[], Any]:
    import torch
    import torch.distributed as dist

    t = torch.ones(1024)
    return lambda: dist.all_reduce(t, async_op=True).wait()


def _functional() -> Callable[[], Any]:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    t, world = torch.ones(1024), dist.group.WORLD
    return lambda: funcol.all_reduce(t, "sum", world).wait()


def _ddp() -> Callable[[], Any]:
    import torch
    from torch import nn

    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    x = torch.ones(2, 8)
    return lambda: model(x).sum().backward()


def _backward() -> Callable[[], Any]:
    import torch

    model = torch.nn.Linear(8, 8)
    x = torch.ones(2, 8)
    return lambda: model(x).sum().backward()


def _optimizer() -> Callable[[], Any]:
    import torch

    p = torch.ones(4, requires_grad=True)
    p.grad = torch.ones(4)
    return torch.optim.SGD([p], 0.01).step


def _loader() -> Callable[[], Any]:
    import torch

    batches = iter(torch.utils.data.DataLoader(range(100_000), batch_size=4))
    return lambda: next(batches)


CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "all_reduce": _all_reduce,
    "all_reduce, async_op and wait": _async,
    "functional all_reduce and wait": _functional,
    "DDP forward and backward (2 spans, 1 row)": _ddp,
    "backward (1 span)": _backward,
    "optimizer step (1 span, 1 step)": _optimizer,
    "next of a data loader (1 span)": _loader,
}


if __name__ == "__main__":
    main()
