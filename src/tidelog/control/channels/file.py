"""Signals from lines appended to a file, as in Debezium's file channel.

Debezium empties the file while it reads, and loses what it had read when it is killed. Here the
file is not changed: the position is kept in the state store, with a digest of the bytes before it,
so that a replaced file is distinguished from one that grew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

from tidelog.control.debezium import parse_line
from tidelog.control.signal_intake import SignalIntake
from tidelog.errors import UsageError
from tidelog.ports import StateStore

logger = logging.getLogger(__name__)

STATE_KEY = "signal-file"
MAX_LINE_BYTES = 1 << 20
TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The position in the file up to which it was read.

    Attributes:
        offset: offset of the first unread byte.
        tail: digest of the `TAIL_BYTES` before it.
        life: number of earlier files at the path; part of a signal's identity.
        in_long_line: whether the next bytes belong to a line that was rejected for its length.
    """

    offset: int = 0
    tail: str = ""
    life: int = 0
    in_long_line: bool = False


class SignalFile:
    """Reads appended lines. Used by one thread.

    Args:
        path: path of the file; it need not exist.
        state: store of the position.
        intake: receives the signals.
    """

    def __init__(self, path: Path, state: StateStore, intake: SignalIntake) -> None:
        self._path = path
        self._state = state
        self._intake = intake
        self._complaint = ""

    def poll(self) -> bool:
        """Read new lines, a megabyte at most; returns whether there were any. If the file can't be
        read, this is logged once, and the next call tries again.

        Each line is in the mailbox before the position is stored: after a crash in between it is
        read again, and recognized there.

        Raises:
            StateError: if the state store fails.
        """
        try:
            with self._path.open("rb") as file:
                stored = self._stored()
                position = _current_position(file, stored)
                if position.offset == os.fstat(file.fileno()).st_size and position == stored:
                    return False
                file.seek(position.offset)
                position = self._take(file.read(MAX_LINE_BYTES + 1), position)
                position = replace(position, tail=_tail(file, position.offset))
        except FileNotFoundError:
            return False
        except OSError as error:
            self._complain(f"{error.strerror}")
            return False
        self._complaint = ""
        if position == stored:
            return False
        self._state.put(STATE_KEY, {"path": str(self._path), **asdict(position)}, None)
        return True

    def _stored(self) -> FilePosition:
        document = self._state.get(STATE_KEY)
        if document is None:
            return FilePosition()
        value = dict(document.value)
        if value.pop("path") != str(self._path):
            return FilePosition(life=value["life"] + 1)
        return FilePosition(**value)

    def _take(self, block: bytes, position: FilePosition) -> FilePosition:
        """Process the whole lines of the block; returns the position after them."""
        at = 0
        while at < len(block):
            end = block.find(b"\n", at)
            line = block[at : end + 1 if end >= 0 else len(block)]
            if end < 0 and (position.in_long_line or (len(block) > MAX_LINE_BYTES and at == 0)):
                if not position.in_long_line:
                    error = UsageError(f"a line of more than {MAX_LINE_BYTES} bytes")
                    self._intake.refuse(line, error, self._name(position, at))
                position = replace(position, in_long_line=True)
            elif end < 0 and not _is_whole(line):
                break  # its end is still being written
            elif position.in_long_line:
                position = replace(position, in_long_line=False)
            elif line.strip():
                self._take_line(line, self._name(position, at))
            at += len(line)
        return replace(position, offset=position.offset + at)

    def _take_line(self, line: bytes, name: str) -> None:
        try:
            signal = parse_line(line.decode("utf-8-sig"))
        except UnicodeDecodeError:
            self._intake.refuse(line, UsageError("the signal is not UTF-8"), name)
        except UsageError as error:
            self._intake.refuse(line, error, name)
        else:
            self._intake.take(signal, name)

    def _name(self, position: FilePosition, at: int) -> str:
        return f"file:{position.life}:{position.offset + at}"

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            logger.warning("signal file %s can't be read: %s", self._path, text)
            self._complaint = text


def _current_position(file: BinaryIO, position: FilePosition) -> FilePosition:
    """The position in the file as it is now: the beginning, if what was read is no longer in it."""
    size = os.fstat(file.fileno()).st_size
    if position.offset and (
        size < position.offset or _tail(file, position.offset) != position.tail
    ):
        return FilePosition(life=position.life + 1)
    return position


def _tail(file: BinaryIO, offset: int) -> str:
    start = max(0, offset - TAIL_BYTES)
    file.seek(start)
    return hashlib.sha256(file.read(offset - start)).hexdigest()[:32] if offset else ""


def _is_whole(line: bytes) -> bool:
    """A last line without a newline is complete if it is a JSON object: no prefix of one is."""
    try:
        return isinstance(json.loads(line.decode("utf-8-sig")), dict)
    except (ValueError, RecursionError):
        return False
