"""What is kept of one table of one life: the newest rows, bounded by number and by bytes."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

BYTES_PER_TABLE = 32 << 20
"""Of one table of one life, in Arrow's memory, unless set otherwise."""


@dataclass(slots=True)
class _Chunk:
    """Rows that came together; within them each counts the same."""

    rows: int
    bytes: float


class Kept:
    """Rows are numbered from 1 on in the order in which they came; the store holds those from `taken - rows + 1` on."""

    def __init__(self) -> None:
        self.taken = 0
        """Rows ever stored: the number of the newest."""
        self.rows = 0
        self.bytes = 0.0
        """Of the rows held, in Arrow's memory."""
        self._chunks: deque[_Chunk] = deque()

    def add(self, rows: int, size: float) -> None:
        """Note that so many rows of so many bytes together were stored."""
        self.taken += rows
        self.rows += rows
        self.bytes += size
        self._chunks.append(_Chunk(rows, size))

    def surplus(self, max_rows: int, max_bytes: int) -> int:
        """How many of the oldest rows must go so that the rest is within both bounds. A quarter more is let be, so that it
        need not be done at every refresh."""
        if self.rows <= max_rows + max_rows // 4 and self.bytes <= max_bytes + max_bytes // 4:
            return 0
        number = max(0, self.rows - max_rows)
        gone, left, excess = 0, number, self.bytes - max_bytes
        for chunk in self._chunks:
            if left <= 0 and excess <= 0:
                break
            each = chunk.bytes / chunk.rows
            wanted = max(left, math.ceil(excess / each) if each > 0 and excess > 0 else 0)
            taken = min(chunk.rows, wanted)
            gone, left, excess = gone + taken, left - taken, excess - taken * each
        return gone

    def drop(self, rows: int) -> int:
        """Forget so many of the oldest rows; the number of the newest among them."""
        left = rows = min(rows, self.rows)
        while left > 0:
            chunk = self._chunks[0]
            gone = min(left, chunk.rows)
            size = chunk.bytes * gone / chunk.rows
            chunk.rows, chunk.bytes, self.bytes = chunk.rows - gone, chunk.bytes - size, self.bytes - size
            left -= gone
            if chunk.rows == 0:
                self._chunks.popleft()
        self.rows -= rows
        return self.taken - self.rows
