"""The stores of the benchmark: each with our state on it, and with its bare client.

A bare client writes the same words and counts without looking at what is there, in the best way
that is known; where several could be the best, all are tried first and the fastest is the peer.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import batched as _batched  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, ClassVar, Self

__all__: list[str] = []
