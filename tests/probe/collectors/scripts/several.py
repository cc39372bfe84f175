"""Several trainings one after the other in the same processes, each in a recording of its own that begins when torch has
been imported and the process group is up. Each argument holds the arguments of one."""

import sys

import torch.distributed as dist
from train import train

import muster.probe

if __name__ == "__main__":
    muster.probe.stop()
    dist.init_process_group("gloo")
    for number, args in enumerate(sys.argv[1:]):
        assert muster.probe.start(job=f"job{number}")
        train(args.split())
        muster.probe.stop()
        dist.barrier()
    dist.destroy_process_group()
