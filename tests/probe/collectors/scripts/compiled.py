"""torch.compile beside the hooks: what it traces is what it traced without them."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


@torch.compile(backend="eager", fullgraph=True)
def plain(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


@torch.compile(backend="eager", fullgraph=True)
def functional(x: torch.Tensor) -> torch.Tensor:
    import torch.distributed._functional_collectives as funcol

    return funcol.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


for _ in range(2):
    assert plain(torch.ones(3)).tolist() == [2.0 * size + 1] * 3
    assert functional(torch.ones(3)).tolist() == [2.0 * size + 1] * 3

model = torch.compile(nn.parallel.DistributedDataParallel(nn.Linear(3, 3)), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    model(torch.ones(2, 3) * rank).sum().backward()
    optimizer.step()
dist.destroy_process_group()
