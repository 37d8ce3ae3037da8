"""Reads a COPY BOTH stream with libpq's own C functions in one compiled loop.

Hot path: benchmarks/bench_stream.py. A Python call for each message costs more than libpq itself,
so the loop over PQgetCopyData runs in a numba kernel without the GIL. It calls the functions of the
libpq that psycopg has loaded, by their addresses.
"""

from __future__ import annotations

import ctypes
import importlib
import select
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidelog.codecs.columns.memory import copy_bytes
from tidelog.codecs.postgres.messages import MAX_MESSAGE_BYTES
from tidelog.model.records import Int64s, UInt8s

# numba annotates the body, not the function that a kernel calls.
_intrinsic: Callable[[Any], Any] = intrinsic

# What `drain` returns.
DRAINED = 0  # nothing more to read now, or within the time limit
FULL = 1  # the buffers are full; more may be available
GROW = 2  # the next message is larger than the buffer: see PENDING_LENGTH
REPLY = 3  # the server asks for a status now
ENDED = -1  # the server ended the COPY
FAILED = -2  # the connection or the stream failed: see PQerrorMessage

# Indexes of the int64 state vector that `drain` and its caller share.
MESSAGES = 0  # messages in the buffer
BYTES = 1  # bytes in the buffer
KEEPALIVE_END = 2  # wal_end of the newest keepalive, 0 if there was none
KEEPALIVE_MESSAGE = 3  # number of messages before that keepalive, in this buffer
SENT_AT = 4  # server's clock at the newest message, microseconds since 2000-01-01
PENDING_ADDRESS = 5  # a message that was taken from libpq but not yet copied
PENDING_LENGTH = 6
SCRATCH = 7  # where PQgetCopyData writes the message's address
POLLED = 8  # what poll() waits for: see `wait_for`
STATE_SIZE = 9

_MANY_MORE = 4
_MUCH_BYTES = 1024  # in one wait: many thousand rows a second

# OpenSSL may hold decrypted bytes that poll() does not see: the longest delay that this causes.
_SLICE_MS = 1_000
_READS = 2  # after this many reads without a complete message, OpenSSL holds no more bytes

# Protocol: "Streaming Replication Protocol", XLogData and Primary keepalive message.
XLOG_DATA = ord("w")
XLOG_DATA_HEADER_BYTES = 25
LOGICAL_MESSAGE = ord("M")  # first byte of what XLogData holds
LOGICAL_MESSAGE_BYTES = XLOG_DATA_HEADER_BYTES + MAX_MESSAGE_BYTES + 1
KEEPALIVE = ord("k")


@dataclass(frozen=True, slots=True)
class LibpqFunctions:
    """Addresses of C functions."""

    consume_input: int
    get_copy_data: int
    free_memory: int
    sleep_us: int
    poll: int


def find_functions() -> LibpqFunctions | None:
    """The functions of the libpq that psycopg uses; None if they are not available (not fatal)."""
    for library in _candidates():
        try:
            return LibpqFunctions(
                consume_input=_address(library.PQconsumeInput),
                get_copy_data=_address(library.PQgetCopyData),
                free_memory=_address(library.PQfreemem),
                sleep_us=_address(ctypes.CDLL(None).usleep),
                poll=_address(ctypes.CDLL(None).poll),
            )
        except (AttributeError, OSError):
            continue
    return None


def free(functions: LibpqFunctions, address: int) -> None:
    """Call PQfreemem."""
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions.free_memory)(address)


def wait_for(state: Int64s, socket: int) -> None:
    """Let `drain_copy` wait until ``socket`` is readable (a struct pollfd)."""
    state[POLLED : POLLED + 1].view(np.int32)[0] = socket
    state[POLLED : POLLED + 1].view(np.int16)[2] = select.POLLIN


def _candidates() -> list[ctypes.CDLL]:
    """Library handles that resolve symbols of psycopg's libpq."""
    libraries = []
    # An extension module's handle finds its dependencies' symbols too; it must be exactly the libpq
    # that opened the connection, since PGconn's layout differs between versions.
    for name in ("psycopg_binary._psycopg", "psycopg_c._psycopg"):
        try:
            path = importlib.import_module(name).__file__
        except ImportError:
            continue
        if path is not None:
            libraries.append(ctypes.CDLL(path))
    if not libraries:
        from ctypes.util import find_library

        # psycopg's pure Python implementation loads the library that find_library names.
        path = find_library("pq")
        if path is not None:
            libraries.append(ctypes.CDLL(path))
    return libraries


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


@_intrinsic
def _call1(typing_context: Any, function: Any, argument: Any) -> Any:
    """Call ``int function(void *)`` at an address. Addresses are arguments, not constants, so that
    the compiled kernel can be cached on disk.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prototype = ir.FunctionType(ir.IntType(32), [ir.IntType(64)])
        pointer = builder.inttoptr(arguments[0], prototype.as_pointer())
        return builder.call(pointer, [arguments[1]])

    return types.int32(types.int64, types.int64), generate


@_intrinsic
def _call3(typing_context: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    """Call ``int function(void *, void *, int)`` at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        prototype = ir.FunctionType(ir.IntType(32), [word, word, ir.IntType(32)])
        pointer = builder.inttoptr(arguments[0], prototype.as_pointer())
        return builder.call(pointer, list(arguments[1:]))

    return types.int32(types.int64, types.int64, types.int64, types.int32), generate


@_intrinsic
def _byte_at(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.load(pointer)

    return types.uint8(types.int64), generate


@numba.njit(nogil=True, cache=True)
def _int64_at(address: int) -> Any:
    value = np.int64(0)
    for index in range(8):
        value = (value << 8) | np.int64(_byte_at(address + index))
    return value


@numba.njit(nogil=True, cache=True)
def drain(
    consume_input: int,
    get_copy_data: int,
    free_memory: int,
    sleep_us: int,
    connection: int,
    buffer: UInt8s,
    offsets: Int64s,
    state: Int64s,
    naps: int,
    nap_us: int,
) -> Any:
    """Append the payloads that have arrived to ``buffer``, back to back; returns one of the codes
    above.

    Args:
        consume_input: address of PQconsumeInput.
        get_copy_data: address of PQgetCopyData.
        free_memory: address of PQfreemem.
        sleep_us: address of usleep.
        connection: address of the PGconn.
        buffer: uint8[capacity].
        offsets: int64[max_messages + 1], offsets[0] being 0.
        state: int64[STATE_SIZE], read and written.
        naps: number of waits for more after the first data; `_MANY_MORE` times as many while
            `_MUCH_BYTES` arrive in each wait. The walsender flushes its socket after every message;
            waking a reader in poll() for each of them costs both sides more than the message
            itself. The work of each call costs as much as many messages.
        nap_us: length of each wait.
    """
    scratch = state.ctypes.data + 8 * SCRATCH
    target = buffer.ctypes.data
    capacity = len(buffer)
    most = len(offsets) - 1
    fresh = False  # has PQconsumeInput been called since the last message?
    left = naps * _MANY_MORE
    before = np.int64(0)
    while True:
        if state[PENDING_ADDRESS] != 0:
            address = state[PENDING_ADDRESS]
            length = state[PENDING_LENGTH]
        else:
            length = np.int64(_call3(get_copy_data, connection, scratch, np.int32(1)))
            if length < 0:
                return length
            if length == 0:
                if not fresh:
                    if _call1(consume_input, connection) == 0:
                        return FAILED
                    fresh = True
                    continue
                if left <= 0 or state[MESSAGES] == 0:
                    return DRAINED
                left -= 1 if state[BYTES] - before >= _MUCH_BYTES else _MANY_MORE
                before = state[BYTES]
                _call1(sleep_us, np.int64(nap_us))
                fresh = False
                continue
            address = state[SCRATCH]
            fresh = False

        tag = _byte_at(address)
        if tag == XLOG_DATA:
            if (
                length > LOGICAL_MESSAGE_BYTES
                and _byte_at(address + XLOG_DATA_HEADER_BYTES) == LOGICAL_MESSAGE
            ):
                length = np.int64(LOGICAL_MESSAGE_BYTES)
            size = length - XLOG_DATA_HEADER_BYTES
            if state[MESSAGES] == most or state[BYTES] + size > capacity:
                state[PENDING_ADDRESS] = address
                state[PENDING_LENGTH] = length
                return GROW if state[MESSAGES] == 0 else FULL
            copy_bytes(target + state[BYTES], address + XLOG_DATA_HEADER_BYTES, size)
            state[SENT_AT] = _int64_at(address + 17)
            state[BYTES] += size
            state[MESSAGES] += 1
            offsets[state[MESSAGES]] = state[BYTES]
        reply_now = False
        if tag == KEEPALIVE:
            state[KEEPALIVE_END] = _int64_at(address + 1)
            state[KEEPALIVE_MESSAGE] = state[MESSAGES]
            state[SENT_AT] = _int64_at(address + 9)
            reply_now = _byte_at(address + 17) != 0
        state[PENDING_ADDRESS] = 0
        _call1(free_memory, address)
        if reply_now:
            return REPLY


@numba.njit(nogil=True, cache=True)
def drain_copy(
    consume_input: int,
    get_copy_data: int,
    free_memory: int,
    poll: int,
    connection: int,
    buffer: UInt8s,
    state: Int64s,
    silence_ms: int,
) -> Any:
    """Append the rows of a COPY OUT to ``buffer``, waiting for them.

    Returns ENDED, FAILED, GROW, or DRAINED after ``silence_ms`` without a byte (0: no limit). The
    other arguments are as in `drain`; MESSAGES counts rows. A row that does not fit stays pending.
    Everything, including the waits, happens here, since getting the interpreter lock may take
    longer than a row takes to arrive.
    """
    scratch = state.ctypes.data + 8 * SCRATCH
    polled = state.ctypes.data + 8 * POLLED
    target = buffer.ctypes.data
    capacity = len(buffer)
    slice_ms = min(silence_ms, _SLICE_MS) if silence_ms else _SLICE_MS
    reads, silent_ms = 0, 0
    while True:
        if state[PENDING_ADDRESS] != 0:
            address = state[PENDING_ADDRESS]
            length = state[PENDING_LENGTH]
        else:
            length = np.int64(_call3(get_copy_data, connection, scratch, np.int32(1)))
            if length < 0:
                return length
            if length == 0:
                if reads < _READS:
                    if _call1(consume_input, connection) == 0:
                        return FAILED
                    reads += 1
                    continue
                reads = 0
                if _call3(poll, polled, np.int64(1), np.int32(slice_ms)) != 0:
                    silent_ms = 0
                    continue
                silent_ms += slice_ms
                if silence_ms and silent_ms >= silence_ms:
                    return DRAINED
                continue
            address = state[SCRATCH]
            reads, silent_ms = 0, 0
        if state[BYTES] + length > capacity:
            state[PENDING_ADDRESS] = address
            state[PENDING_LENGTH] = length
            return GROW
        copy_bytes(target + state[BYTES], address, length)
        state[BYTES] += length
        state[MESSAGES] += 1
        state[PENDING_ADDRESS] = 0
        _call1(free_memory, address)
