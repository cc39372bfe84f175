"""One small training loop in many ways. Knows nothing of Muster, unless `--user-steps` asks for it."""

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser()
    p.add_argument("--mode", default="plain")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--slow", default="none", help="place where rank 1 sleeps: data, forward, backward or optimizer")
    p.add_argument("--hang", default="none", help="place where rank 1 stops for ever in step 5")
    p.add_argument("--accumulate", type=int, default=1)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--start-method", default="fork")
    p.add_argument("--comm-hook", action="store_true")
    p.add_argument("--evaluate", action="store_true")
    p.add_argument("--checkpoint", action="store_true")
    p.add_argument("--user-steps", action="store_true")
    return p.parse_args(args)


class Faults:
    def __init__(self, a: argparse.Namespace) -> None:
        self.a, self.step, self.on = a, 0, dist.get_rank() == 1

    def here(self, place: str) -> None:
        if self.on and self.a.slow == place:
            time.sleep(0.015)
        if self.on and self.a.hang == place and self.step == 5:
            time.sleep(600)


class Data(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((8,), float(i % 7))


class Model(nn.Module):
    def __init__(self, faults: Faults, buffers: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 64), nn.Linear(64, 8)
        self.norm = nn.BatchNorm1d(64) if buffers else nn.Identity()
        self.faults = faults

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.004)
        self.faults.here("forward")
        hidden = self.norm(self.a(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda _: self.faults.here("backward"))
        return self.b(hidden)


def parallel(inner: nn.Module, a: argparse.Namespace) -> nn.Module:
    if a.mode.startswith("ddp"):
        unused = a.mode == "ddp-unused"
        if unused:
            inner.spare = nn.Linear(8, 8)
        model = nn.parallel.DistributedDataParallel(inner, find_unused_parameters=unused)
        if a.comm_hook:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            model.register_comm_hook(None, allreduce_hook)
        return model
    if a.mode == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (inner.a, inner.b):
            fully_shard(layer, mesh=mesh)
        return fully_shard(inner, mesh=mesh)
    return inner


def train(args: Sequence[str] | None = None) -> None:
    a = parse(args)
    torch.manual_seed(0)
    faults = Faults(a)
    inner = Model(faults, a.mode == "ddp-buffers")
    model = parallel(inner, a)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    method = a.start_method if a.workers else None
    loader = DataLoader(Data(), batch_size=4, num_workers=a.workers, multiprocessing_context=method)

    def batches() -> Iterator[torch.Tensor]:
        for x in loader:
            faults.here("data")
            yield x

    source = iter(batches())
    for step in range(a.steps):
        faults.step = step
        for micro in range(a.accumulate):
            x = next(source)
            skip = a.mode.startswith("ddp") and micro < a.accumulate - 1
            with model.no_sync() if skip else contextlib.nullcontext():
                model(x).square().mean().backward()
        if a.mode == "plain":
            for q in model.parameters():
                dist.all_reduce(q.grad)
        faults.here("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        if a.evaluate and step % 4 == 3:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
        if a.checkpoint and step == 6:
            torch.save(inner.state_dict(), f"rank-{dist.get_rank()}.pt")
        if a.user_steps:
            import muster.probe

            muster.probe.step(1000 + step)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.barrier()
    dist.destroy_process_group()
