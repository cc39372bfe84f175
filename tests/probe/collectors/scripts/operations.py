"""Calls every kind of collective once or twice. Knows nothing of Muster."""

import gc
import json

import torch
import torch.distributed as dist
from torch.distributed import all_reduce  # by name, before anything runs

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
other = (rank + 1) % size
before = (rank - 1) % size
pair = dist.new_group([0, 1])


def t(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


x = t(2, 3)
all_reduce(x)
assert x[0, 0] == size
if rank < 2:
    dist.all_reduce(t(4), group=pair)
dist.broadcast(t(5), src=1)
dist.reduce(t(5), 0)
dist.all_gather([t(2) for _ in range(size)], t(2))
dist.all_gather_into_tensor(t(2 * size), t(2))
dist.reduce_scatter(t(2), [t(2) for _ in range(size)])
dist.reduce_scatter_tensor(t(2), t(2 * size))
dist.gather(t(3), [t(3) for _ in range(size)] if rank == 0 else None, dst=0)
dist.scatter(t(3), [t(3) for _ in range(size)] if rank == 0 else None, src=0)
dist.all_to_all_single(t(size * 2), t(size * 2), [2] * size, [2] * size)
dist.barrier()
dist.monitored_barrier()
if rank == 0:
    dist.send(t(7), 1)
elif rank == 1:
    dist.recv(t(7), 0)
objects: list[object] = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects[1] == {"rank": 1}
some = [{"a": 1} if rank == 0 else None]
dist.broadcast_object_list(some, 0)
assert some == [{"a": 1}]

work = dist.all_reduce(t(8), async_op=True)
assert isinstance(work, dist.Work)
work.wait()
work.wait()
assert work.is_completed()
dist.all_reduce(t(9), async_op=True).get_future().wait()
chained = dist.all_reduce(t(10), async_op=True).get_future().then(lambda f: f.value()[0] + 1)
assert chained.wait()[0] == size + 1
del chained
gc.collect()
unwaited = dist.all_reduce(t(11), async_op=True)
while not unwaited.is_completed():
    pass
del unwaited
requests = [dist.isend(t(12), other), dist.irecv(t(12), before)]
for request in requests:
    request.wait()
works = dist.batch_isend_irecv([dist.P2POp(dist.isend, t(13), other), dist.P2POp(dist.irecv, t(13), before)])
for w in works:
    w.wait()
with dist._coalescing_manager():
    dist.all_reduce(t(14))
    dist.all_reduce(t(15))
with dist._coalescing_manager(async_ops=True) as manager:
    dist.all_reduce(t(16))
    dist.all_reduce(t(17))
manager.wait()
dist.all_reduce(t(18))
try:
    dist.all_reduce(t(19), group=dist.GroupMember.NON_GROUP_MEMBER)
    dist.all_reduce("no tensor")
except TypeError as error:
    print(json.dumps({"error": str(error)}))
dist.barrier()
dist.destroy_process_group()
