"""Process groups of torch as the collective log knows them."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import ref

from muster.probe.collectives import Group
from muster.probe.recorder import Recorder


class KnownGroup:
    """A process group of torch: its name, members and sequence numbers."""

    __slots__ = ("_numbered", "_uneven", "group", "pg")

    def __init__(self, pg: Any, group: Group) -> None:
        self.pg = ref(pg)
        self.group = group
        self._numbered = True
        self._uneven = 0

    def sequence(self, pg: Any) -> int | None:
        """Number of the newest collective that was started on the group, where the backend counts. Equal on all ranks for
        the same collective: what sends and receives have added (on gloo they do) is taken off."""
        if not self._numbered:
            return None
        try:
            number = int(pg._get_sequence_number_for_group())
        except Exception:  # this backend does not count: asked once, then known
            self._numbered = False
            return None
        return number - self._uneven

    def passed(self, numbers: int) -> None:
        """Something that not every member takes part in has moved the backend's number on by this much."""
        self._uneven += numbers


class Groups:
    """Finds the group that a call means. Made when `torch.distributed.distributed_c10d` is there."""

    def __init__(self, recorder: Recorder, c10d: ModuleType) -> None:
        self._recorder = recorder
        self._c10d = c10d
        self._known: dict[int, KnownGroup] = {}

    def default(self) -> Any:
        """The default process group; None while there is none."""
        return self._c10d.GroupMember.WORLD

    def member(self, group: Any) -> Any:
        """The process group that an argument `group` stands for, if this rank is in it, else None."""
        pg = self.default() if group is None else group
        if pg is None or pg is self._c10d.GroupMember.NON_GROUP_MEMBER:
            return None
        return pg

    def known(self, pg: Any) -> KnownGroup:
        """What is known of a process group."""
        found = self._known.get(id(pg))
        if found is not None and found.pg() is pg:
            return found
        ranks = tuple(int(r) for r in self._c10d.get_process_group_ranks(pg))
        found = KnownGroup(pg, self._recorder.collectives.group(self._name(pg), ranks))
        if len(self._known) > 4096:
            self._known = {key: known for key, known in self._known.items() if known.pg() is not None}
        self._known[id(pg)] = found
        return found

    def resolve(self, group: Any) -> Any:
        """The process group of what functional collectives take: a group, its name, a mesh, a mesh and a dimension."""
        if isinstance(group, str):
            return self._c10d._resolve_process_group(group)
        if isinstance(group, tuple) and len(group) == 2 and hasattr(group[0], "get_group"):
            return group[0].get_group(group[1])
        if hasattr(group, "get_group") and hasattr(group, "ndim"):
            return group.get_group() if group.ndim == 1 else None
        if isinstance(group, list):
            return self._c10d._find_pg_by_ranks_and_tag("", group) if group and isinstance(group[0], int) else None
        return self.member(group)

    def _name(self, pg: Any) -> str:
        name = getattr(pg, "group_name", None)
        return str(name) if name not in (None, "") else str(self._c10d._get_process_group_name(pg))
