"""Collectors: what sees a training process from inside, without a change to its code. Nothing here imports torch: parts of
it are patched when the script imports them.

| name | sees |
|---|---|
| collectives | calls of torch.distributed, plain and asynchronous, FSDP2's among them |
| functional | functional collectives (tensor parallelism, DTensor) |
| ddp | DistributedDataParallel's own reducer |
| steps | steps, by the first optimizer; backward and optimizer phases |
| data | time in the data loader |
| checkpoints | torch.save and distributed checkpoints |

`torch` stands for all of them. Patched functions call the original with the same arguments and return what it returns;
in a forked child, while a function is compiled, and after `uninstall` they do nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.probe.collectors.checkpoints import Checkpoints
from muster.probe.collectors.collectives import Collectives
from muster.probe.collectors.data import Data
from muster.probe.collectors.ddp import Ddp
from muster.probe.collectors.functional import Functional
from muster.probe.collectors.generation import Generation
from muster.probe.collectors.groups import Groups
from muster.probe.collectors.patches import Patches
from muster.probe.collectors.steps import OptimizerSteps
from muster.probe.recorder import Recorder

NAMES = ("collectives", "functional", "ddp", "steps", "data", "checkpoints")


def install(recorder: Recorder, names: Sequence[str]) -> Callable[[], None]:
    """Install collectors by name (`torch` for all). Returns what uninstalls them. An unknown name is counted."""
    wanted = set(NAMES) if "torch" in names else set(names) & set(NAMES)
    for name in set(names) - {"torch", *NAMES}:
        recorder.count_error("collectors", f"there is no collector {name!r}; there are {', '.join(NAMES)}")
    patches = Patches(recorder)
    groups = Groups(recorder)
    generation = Generation(recorder, groups)
    generation.install(patches)
    if "collectives" in wanted:
        Collectives(recorder, groups, generation).install(patches)
    if "functional" in wanted:
        Functional(recorder, groups).install(patches)
    if "ddp" in wanted:
        Ddp(recorder, groups).install(patches)
    if "steps" in wanted:
        OptimizerSteps(recorder, generation).install(patches)
    if "data" in wanted:
        Data(recorder).install(patches)
    if "checkpoints" in wanted:
        Checkpoints(recorder).install(patches)
    return patches.remove
