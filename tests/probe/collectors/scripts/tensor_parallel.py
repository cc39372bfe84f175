"""Functional collectives as tensor parallelism and DTensor call them."""

import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
x = torch.ones(4, 8, requires_grad=True)

funcol.all_reduce(torch.ones(2), "sum", dist.group.WORLD).sum()  # the first call imports things
reduced = funcol.all_reduce(torch.ones(4, 8), "sum", dist.group.WORLD)
if rank == 1:
    time.sleep(0.05)  # work while it is in flight
assert reduced[0, 0] == size
gathered = funcol.all_gather_tensor(torch.ones(2, 3), 0, mesh)
assert gathered.shape == (2 * size, 3)
gathered.sum()
forgotten = funcol.all_reduce(torch.ones(5), "sum", dist.group.WORLD)

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(5):
    model(x).sum().backward()
    optimizer.step()
sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
assert sharded.full_tensor().tolist() == list(range(8))
dist.destroy_process_group()
