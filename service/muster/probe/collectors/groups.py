"""From torch's process groups to the recorder's: name, members, own rank, sequence number."""

from __future__ import annotations

import sys
from typing import Any

from muster.probe.collectives import Group
from muster.probe.recorder import Recorder


class Groups:
    """Looks each process group up once."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[Any, Group] = {}

    def resolve(self, group: Any) -> tuple[Any, Group] | None:
        """Process group and recorder's group for the `group` argument of a call; None where this process is no member, or
        there is no default group yet (the call will say so itself)."""
        c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
        if group is None:
            group = c10d._world.default_pg
            if group is None:
                return None
        elif group is c10d.GroupMember.NON_GROUP_MEMBER:
            return None
        found = self._known.get(group)
        if found is None:
            ranks = c10d.get_process_group_ranks(group)
            name = c10d._world.pg_names.get(group) or group.group_name
            found = self._recorder.collectives.group(str(name), tuple(ranks), group.rank())
            if len(self._known) > 4096:
                self._known.clear()
            self._known[group] = found
        return group, found

    def forget(self) -> None:
        """Groups were destroyed: the same object may mean another one."""
        self._known.clear()

    @staticmethod
    def global_rank(group: Any, rank: int) -> int:
        """Global rank of a member of a group."""
        c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
        return int(c10d.get_global_rank(group, rank))


def next_seq(group: Any) -> int | None:
    """The sequence number that the next collective of a group will have; None where the backend counts none."""
    try:
        return int(group._get_sequence_number_for_group()) + 1
    except RuntimeError:
        return None
