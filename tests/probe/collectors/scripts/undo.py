"""What torch looks like before, while and after hooks are set, when it was imported before them."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.utils.data.dataloader
from torch import nn
from torch.distributed import _functional_collectives as funcol
from torch.distributed import all_reduce, isend

import muster.probe

PLACES = (
    dist, c10d, funcol, dist.Work, torch._C.Future, nn.parallel.DistributedDataParallel, torch.autograd, torch,
    torch.serialization, torch.utils.data.dataloader._BaseDataLoaderIter, sys.modules[__name__],
)  # fmt: skip


def picture() -> dict[tuple[int, str], int]:
    kept = {
        (i, name): id(value) for i, place in enumerate(PLACES) for name, value in vars(place).items() if callable(value)
    }
    remaps = {(99, f.__name__): id(f) for f in funcol.traceable_collective_remaps}
    hooks = optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks
    return kept | remaps | {(100, "hooks"): sum(len(h) for h in hooks), (101, "meta"): len(sys.meta_path)}


optim = sys.modules["torch.optim.optimizer"]
muster.probe.stop()
before = picture()
original = [all_reduce]  # not a name of a module, so that it stays
assert muster.probe.start(job="undo", collect="torch")
during = picture()
changed = {key for key in before if before[key] != during[key]}
expected = {"all_reduce", "isend", "wait", "backward", "save", "__next__", "forward", "wait_tensor", "hooks"}
assert expected <= {name for _, name in changed}
assert all_reduce is dist.all_reduce is c10d.all_reduce is not original[0]  # taken by name before, and still recorded
assert isend is dist.isend

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
all_reduce(torch.ones(3))
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
model(torch.ones(1, 3)).sum().backward()
assert len([p for p in model.parameters() if p._post_accumulate_grad_hooks]) == 2
held = [dist.all_reduce]

muster.probe.stop()
after = picture()  # torch itself changes things while it runs: compare what the hooks changed
assert {key: after[key] for key in changed} == {key: before[key] for key in changed}
assert all_reduce is original[0]
assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
held[0](torch.ones(3))  # kept in a place that nobody can know of: calls through
model(torch.ones(1, 3)).sum().backward()

assert muster.probe.start(job="again", collect="torch")
all_reduce(torch.ones(5))
muster.probe.stop()
after = picture()
assert {key: after[key] for key in changed} == {key: before[key] for key in changed}
dist.destroy_process_group()
