"""librdkafka's producer by its C interface: a kernel hands over Arrow columns, without a Python
object for each message. The library is the one that confluent-kafka has loaded.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, cimpl
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tidelog.model.records import Int64s, readonly
from tidelog.outputs.kafka.client import VERSION_HEADER, librdkafka_log

Header = tuple[str, bytes]
_Cells = tuple[Any, Any, Any]

# An extension module's handle finds the symbols of its dependencies, too.
_library = ctypes.CDLL(cimpl.__file__)

# rdkafka.h
_PRODUCER = 0
_PURGE_QUEUE, _PURGE_INFLIGHT = 1, 2
# Its arguments of variable type, rd_kafka_vu_t: the type in 8 bytes, the value in 64.
_TOPIC, _VALUE, _KEY, _OPAQUE, _FLAGS, _HEADER = 2, 4, 5, 6, 7, 9
_VU_WORDS = 9
# Positions of the arguments of one message; all headers are last.
_VALUE_AT, _KEY_AT, _OPAQUE_AT, _VERSION_AT, _FIXED = 2, 3, 4, 5, 6
_TEXT_BYTES = 512
_DRAIN_S = 1.0
_POLL_S = 0.002
_IDLE_S, _OLD_S = 60.0, 600.0
"""Seconds. Brokers close connections that are idle for 10 minutes."""
# Of syslog's levels.
_LOG_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)


class _Report(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("number", c_void_p),
    )


_OnReport = CFUNCTYPE(None, c_void_p, POINTER(_Report), c_void_p)
_OnError = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
_OnLog = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    found = getattr(_library, f"rd_kafka_{name}")
    found.restype, found.argtypes = result, arguments
    return found


_conf_new = _function("conf_new", c_void_p)
_conf_destroy = _function("conf_destroy", None, c_void_p)
_conf_set = _function("conf_set", c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)
_set_report_callback = _function("conf_set_dr_msg_cb", None, c_void_p, _OnReport)
_set_error_callback = _function("conf_set_error_cb", None, c_void_p, _OnError)
_set_log_callback = _function("conf_set_log_cb", None, c_void_p, _OnLog)
_set_log_queue = _function("set_log_queue", c_int, c_void_p, c_void_p)
_new = _function("new", c_void_p, c_int, c_void_p, c_char_p, c_size_t)
_name = _function("name", c_char_p, c_void_p)
_destroy = _function("destroy", None, c_void_p)
_topic_new = _function("topic_new", c_void_p, c_void_p, c_char_p, c_void_p)
_topic_destroy = _function("topic_destroy", None, c_void_p)
_poll = _function("poll", c_int, c_void_p, c_int)
_purge = _function("purge", c_int, c_void_p, c_int)
_outq_len = _function("outq_len", c_int, c_void_p)
_last_error = _function("last_error", c_int)
_init_transactions = _function("init_transactions", c_void_p, c_void_p, c_int)
_begin_transaction = _function("begin_transaction", c_void_p, c_void_p)
_commit_transaction = _function("commit_transaction", c_void_p, c_void_p, c_int)
_error_code = _function("error_code", c_int, c_void_p)
_error_string = _function("error_string", c_char_p, c_void_p)
_error_is_fatal = _function("error_is_fatal", c_int, c_void_p)
_error_destroy = _function("error_destroy", None, c_void_p)
_produceva: int = ctypes.cast(_library.rd_kafka_produceva, c_void_p).value or 0


class Columns(NamedTuple):
    """Messages as the kernel reads them, see `_cells` and `_header_columns`."""

    key: _Cells
    value: _Cells
    version: _Cells
    extra: Int64s
    names: _Cells
    values: _Cells

    def slice(self, start: int, count: int) -> Columns:
        every = slice(start, start + count)
        bounds = slice(start, start + count + 1)
        key, value, version = ((data, ends[bounds], valid[every]) for data, ends, valid in self[:3])
        extra = self.extra[bounds]
        return self._replace(key=key, value=value, version=version, extra=extra)


@dataclass(frozen=True)
class MessageChunk:
    """Messages of `tidelog.outputs.formatters.messages` for a topic; ``common``: headers of all."""

    topic: str
    messages: pa.RecordBatch
    common: tuple[Header, ...]

    def __len__(self) -> int:
        return int(self.messages.num_rows)

    @cached_property
    def columns(self) -> Columns:
        rows = self.messages
        key, value = _cells(rows.column("key")), _cells(rows.column("value"))
        version = _cells(rows.column("version").cast(pa.string()))
        return Columns(key, value, version, *_header_columns(rows.column("headers")))

    def slice(self, start: int, count: int | None = None) -> MessageChunk:
        part = replace(self, messages=self.messages.slice(start, count))
        vars(part)["columns"] = self.columns.slice(start, len(part))
        return part

    def filter(self, kept: npt.NDArray[np.bool_]) -> MessageChunk:
        return self if kept.all() else replace(self, messages=self.messages.filter(pa.array(kept)))

    @property
    def version(self) -> int:
        """The version of the first message."""
        return int(self.messages.column("version")[0].as_py())


class Producer:
    """A client of librdkafka with one thread. `close` it.

    Args:
        settings: librdkafka's.
        on_failed: called in `poll` with the number of each message that was not delivered.
        on_error: called in `poll` with the reason why there is no connection.

    Raises:
        KafkaException: librdkafka does not take the settings.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        on_failed: Callable[[KafkaError, int], None],
        on_error: Callable[[KafkaError], None],
    ) -> None:
        self.on_failed, self.on_error = on_failed, on_error
        self.created = time.monotonic()

        def report(_: int, found: Any, __: int) -> None:
            message = found.contents
            if message.err:
                self.on_failed(KafkaError(message.err), message.number or 0)

        def error(_: int, code: int, reason: bytes, __: int) -> None:
            if code != KafkaError._FATAL:  # each of its messages is reported
                self.on_error(KafkaError(code, reason.decode(errors="replace")))

        self._callbacks = _OnReport(report), _OnError(error), _OnLog(_log)
        self._client = self._new_client(settings)
        self._topics: dict[str, int] = {}
        self._shared: dict[tuple[str, tuple[Header, ...]], tuple[Int64s, list[Any]]] = {}
        _set_log_queue(self._client, None)

    def _new_client(self, settings: Mapping[str, Any]) -> int:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = _conf_new()
        own = {"log.queue": True, "delivery.report.only.error": True}
        for name, value in {**settings, **own}.items():
            if value is None:
                continue
            written = str(value).lower() if isinstance(value, bool) else str(value)
            if _conf_set(conf, name.encode(), written.encode(), text, _TEXT_BYTES):
                _conf_destroy(conf)
                raise _exception(KafkaError._INVALID_ARG, text.value)
        report, error, log = self._callbacks
        _set_report_callback(conf, report)
        _set_error_callback(conf, error)
        _set_log_callback(conf, log)
        client: int | None = _new(_PRODUCER, conf, text, _TEXT_BYTES)
        if client is None:
            code = _last_error()
            _conf_destroy(conf)
            raise _exception(code, text.value)
        return client

    def __len__(self) -> int:
        """The number of messages without a result."""
        return int(_outq_len(self._client)) if self._client else 0

    def produce(self, chunk: MessageChunk, number: int) -> tuple[int, KafkaError | None]:
        """Hand over messages, numbered from ``number`` on; their values must live until they have
        a result, or the producer is closed.

        Returns how many librdkafka has taken, and why it has not taken the next.
        """
        kind = chunk.topic, chunk.common
        if kind not in self._shared:
            self._shared[kind] = self._arguments(*kind)
        items, _ = self._shared[kind]
        common = np.int64(len(items))
        if own := int(np.diff(chunk.columns.extra).max(initial=0)):
            items = np.concatenate([items, _headers(own)])
        taken, error = _produce(_produceva, self._client, items, common, number, *chunk.columns)
        return taken, _taken_error(error) if error else None

    def poll(self, timeout_s: float) -> None:
        """Receive results and errors."""
        _poll(self._client, int(timeout_s * 1000))

    def purge(self, *, in_flight: bool) -> None:
        """Drop the messages that wait and, if asked, those of which no broker's answer is known."""
        _purge(self._client, _PURGE_QUEUE | (_PURGE_INFLIGHT if in_flight else 0))

    def begin_transaction(self, timeout_s: float) -> None:
        """Begin the first transaction, and end those of earlier producers of this id."""
        _check(_init_transactions(self._client, int(timeout_s * 1000)))
        _check(_begin_transaction(self._client))

    def commit_transaction(self, timeout_s: float) -> None:
        _check(_commit_transaction(self._client, int(timeout_s * 1000)))

    def close(self) -> None:
        """Drop what was not sent. What is in flight may arrive."""
        if not self._client:
            return
        self.purge(in_flight=True)
        until = time.monotonic() + _DRAIN_S
        while len(self) and time.monotonic() < until:
            self.poll(_POLL_S)
        for topic in self._topics.values():
            _topic_destroy(topic)
        client, self._client, self._topics = self._client, 0, {}
        _destroy(client)

    def _topic(self, name: str) -> int:
        found = self._topics.get(name)
        if found is None:
            found = _topic_new(self._client, name.encode(), None)
            if found is None:
                raise _exception(_last_error(), b"")
            self._topics[name] = found
        return found

    def _arguments(self, topic: str, common: tuple[Header, ...]) -> tuple[Int64s, list[Any]]:
        """Return the arguments that all messages share, and the memory that they point to."""
        items = np.zeros((_FIXED, _VU_WORDS), np.int64)
        fixed = [_TOPIC, _FLAGS, _VALUE, _KEY, _OPAQUE, _HEADER]
        items.view(np.int32)[:, 0] = fixed
        items[0, 1] = self._topic(topic)  # no flags: values are not copied
        memory: list[Any] = [c_char_p(VERSION_HEADER.encode())]
        items[_VERSION_AT, 1] = _address(memory[0])
        more = _headers(len(common))
        for header, (name, value) in zip(more, common, strict=True):
            both = c_char_p(name.encode()), c_char_p(value)
            header[1], header[2], header[3] = *map(_address, both), len(value)
            memory += both
        return np.concatenate([items, more]), memory


def _nothing(*_: object) -> None:
    """No task waits for what an idle producer reports."""


class IdleProducers:
    """Keeps producers without messages for the next tasks of this process, by their settings.

    A new idempotent producer has no connection when it asks for its id, and asks again after half a
    second (librdkafka's `rd_kafka_idemp_pid_fsm`).
    """

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: list[tuple[Mapping[str, Any], Producer, threading.Timer]] = []

    def take(self, settings: Mapping[str, Any]) -> Producer | None:
        """Return a producer with these settings, which is the caller's then."""
        with self._lock:
            for at, (own, producer, timer) in enumerate(self._idle):
                if own == settings:
                    del self._idle[at]
                    timer.cancel()
                    return producer
        return None

    def keep(self, settings: Mapping[str, Any], producer: Producer) -> None:
        """Keep a producer, whose messages brokers have, until it was idle for a minute; or close
        it, if it is old: certificates may have been renewed since it read them.
        """
        producer.on_failed, producer.on_error = _nothing, _nothing
        if time.monotonic() > producer.created + _OLD_S:
            producer.close()
            return
        timer = threading.Timer(self._idle_s, self._close, [producer])
        timer.daemon = True
        with self._lock:
            self._idle.append((dict(settings), producer, timer))
        timer.start()

    def close(self) -> None:
        """Close the idle ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, producer, timer in idle:
            timer.cancel()
            producer.close()

    def _close(self, producer: Producer) -> None:
        with self._lock:
            left = [each for each in self._idle if each[1] is not producer]
            taken, self._idle = len(left) == len(self._idle), left
        if not taken:
            producer.close()


def _headers(count: int) -> Int64s:
    """Return arguments for as many headers."""
    items = np.zeros((count, _VU_WORDS), np.int64)
    items.view(np.int32)[:, 0] = _HEADER
    return items


def _address(text: c_char_p) -> int:
    return ctypes.cast(text, c_void_p).value or 0


def _exception(code: int, reason: bytes) -> KafkaException:
    return KafkaException(KafkaError(code, reason.decode(errors="replace") or None))


def _taken_error(error: int) -> KafkaError:
    """Return librdkafka's error, and frees it."""
    reason = (_error_string(error) or b"").decode(errors="replace")
    found = KafkaError(_error_code(error), reason, fatal=bool(_error_is_fatal(error)))
    _error_destroy(error)
    return found


def _check(error: int | None) -> None:
    if error:
        raise KafkaException(_taken_error(error))


def _log(client: int, level: int, facility: bytes, line: bytes) -> None:
    texts = (each.decode(errors="replace") for each in (facility, _name(client), line))
    known = _LOG_LEVELS[level] if 0 <= level < len(_LOG_LEVELS) else logging.INFO
    librdkafka_log.log(known, "%s [%s] %s", *texts)


# Columns.

_NONE = np.zeros(1, np.uint8)


def _cells(column: pa.Array) -> _Cells:
    """Return the bytes of texts, int32[n + 1] bounds, and bool[n], empty if all are valid."""
    n = len(column)
    _, offsets, content = column.buffers()
    bounds = np.frombuffer(offsets, np.int32, n + 1, 4 * column.offset) if n else np.zeros(1, "i4")
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else _NONE
    valid = column.is_valid() if column.null_count else pa.array([], pa.bool_())
    cells = data, bounds, valid.to_numpy(zero_copy_only=False)
    return tuple(readonly(each) for each in cells)  # type: ignore[return-value]


def _header_columns(column: pa.MapArray) -> tuple[Int64s, _Cells, _Cells]:
    """Return int64[n + 1], where each message's own headers begin, their names, each with a
    zero byte at its end, and their values. Those without a value are left out.
    """
    n = len(column)
    if column.null_count == n:
        nothing = _cells(pa.array([], pa.binary()))
        return np.zeros(n + 1, np.int64), nothing, nothing
    offsets = column.offsets.to_numpy()
    low, high = int(offsets[0]), int(offsets[-1])
    keys, values = (each.slice(low, high - low) for each in (column.keys, column.items))
    there = values.is_valid()
    ends = np.concatenate([[0], np.cumsum(there.to_numpy(zero_copy_only=False))])
    names = pc.binary_join_element_wise(keys.filter(there), "", "\0")
    return ends[offsets - low].astype(np.int64), _cells(names), _cells(values.filter(there))


# HOT PATH. The kernel.

_intrinsic: Callable[[Any], Any] = intrinsic


@_intrinsic
def _call(typing_context: Any, function: Any, client: Any, items: Any, count: Any) -> Any:
    """Call ``rd_kafka_error_t *function(rd_kafka_t *, const rd_kafka_vu_t *, size_t)`` at an
    address. Addresses are arguments, so that the compiled kernel can be cached on disk.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        prototype = ir.FunctionType(word, [word, word, word])
        pointer = builder.inttoptr(arguments[0], prototype.as_pointer())
        return builder.call(pointer, list(arguments[1:]))

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@njit(cache=True, nogil=True)
def _produce(  # type: ignore[no-untyped-def]
    produceva, client, items, common, number, key, value, version, extra, names, values
):
    """Hand over messages until one is not taken: the number of those before, and its error."""
    for row in range(len(key[1]) - 1):
        _point(items[_VALUE_AT], 1, value, row)
        _point(items[_KEY_AT], 1, key, row)
        items[_OPAQUE_AT, 1] = number + row
        _point(items[_VERSION_AT], 2, version, row)
        count = common
        for each in range(extra[row], extra[row + 1]):
            _point(items[count], 1, names, each)
            _point(items[count], 2, values, each)
            count += 1
        error = _call(produceva, client, items.ctypes.data, count)
        if error != 0:
            return row, error
    return len(key[1]) - 1, 0


@njit(cache=True, nogil=True)
def _point(item, at, cells, row):  # type: ignore[no-untyped-def]
    """Write address and length of a cell; null has none."""
    data, bounds, valid = cells
    if len(valid) != 0 and not valid[row]:
        item[at] = item[at + 1] = 0
    else:
        item[at] = data.ctypes.data + bounds[row]
        item[at + 1] = bounds[row + 1] - bounds[row]
