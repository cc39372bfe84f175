"""Time in the data loader: a span of phase `data` around each `next` of its iterator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from muster.probe.collectors.patches import Patches
from muster.probe.recorder import Recorder


class Data:
    """Patches the iterator of torch's DataLoader. Its workers are other processes and record nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def install(self, patches: Patches) -> None:
        patches.when_imported("torch.utils.data.dataloader", lambda module: self._patch(patches, module))

    def _patch(self, patches: Patches, module: ModuleType) -> None:
        patches.replace(module._BaseDataLoaderIter, "__next__", self._next)

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        @functools.wraps(original)
        def next_batch(loader: Any) -> Any:
            if not recorder.active:
                return original(loader)
            span = recorder.spans.open("data.next", "data")
            try:
                return original(loader)
            finally:
                recorder.spans.close(span)

        return next_batch
