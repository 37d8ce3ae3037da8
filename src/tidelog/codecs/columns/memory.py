"""Reads and copies memory at addresses, which numba's kernels can't express otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_intrinsic: Callable[[Any], Any] = intrinsic


@_intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    """memcpy(target, source, length) of addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        word = ir.IntType(64)
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [byte_pointer, byte_pointer, word])
        to = builder.inttoptr(arguments[0], byte_pointer)
        from_ = builder.inttoptr(arguments[1], byte_pointer)
        builder.call(memcpy, [to, from_, arguments[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


def _reader(kind: Any) -> Any:
    def reader(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = context.get_value_type(kind).as_pointer()
            return builder.load(builder.inttoptr(arguments[0], pointer), align=1)

        return kind(types.int64), generate

    return _intrinsic(reader)


read_byte, read_int32, read_int64 = map(_reader, (types.uint8, types.int32, types.int64))
"""Read the value at an address."""
