"""A small real training script: four ways to communicate, one injected fault. Knows nothing of Muster.

Compute is mostly sleep, so that several ranks on few cores do not disturb each other more than the fault does.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser()
    p.add_argument("--mode", choices=["plain", "ddp", "fsdp"], default="plain")
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--compute-ms", type=float, default=20.0)
    p.add_argument("--fault", default="none", help="none | slow:RANK:MS | kill:RANK | stop:RANK | gil:RANK:S | raise:RANK")
    p.add_argument("--at", type=int, default=30, help="step at which the fault starts")
    p.add_argument("--workers", type=int, default=0)
    return p.parse_args()


class Fault:
    """Does its harm on one rank from one step on."""

    def __init__(self, text: str, at: int, rank: int) -> None:
        kind, *rest = text.split(":")
        self.kind = kind if kind != "none" and rank == int(rest[0]) else "none"
        self.amount = float(rest[1]) if len(rest) > 1 else 0.0
        self.at = at

    def strike(self, step: int) -> None:
        if step < self.at:
            return
        if self.kind == "slow":
            time.sleep(self.amount / 1000)
        elif step == self.at and self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif step == self.at and self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif step == self.at and self.kind == "gil":
            ctypes.PyDLL(None).sleep(int(self.amount))
        elif step == self.at and self.kind == "raise":
            raise RuntimeError("injected failure")


class Work(nn.Module):
    """A small layer stack whose forward takes a given time."""

    def __init__(self, compute_ms: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))
        self.compute_ms = compute_ms
        self.fault: Fault | None = None
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.compute_ms / 1000)
        if self.fault is not None:
            self.fault.strike(self.step)
        out: torch.Tensor = self.layers(x)
        return out


def batches(loader: DataLoader[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, ...]]:
    while True:
        yield from loader


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    work = Work(args.compute_ms)
    work.fault = Fault(args.fault, args.at, rank)
    model: nn.Module = work
    if args.mode == "ddp":
        model = nn.parallel.DistributedDataParallel(work)
    elif args.mode == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(work, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(4096, 64), torch.randn(4096, 8))
    loader = DataLoader(data, batch_size=16, num_workers=args.workers)
    stream = batches(loader)
    for step in range(args.steps):
        work.step = step
        x, y = next(stream)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if args.mode == "plain":
            for p in model.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
    with contextlib.suppress(RuntimeError):
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
