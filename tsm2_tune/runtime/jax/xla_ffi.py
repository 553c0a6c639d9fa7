"""A handler for XLA's foreign function interface, written in Python with ctypes: it needs no headers or compiler.

The structures follow XLA's stable C ABI (xla/ffi/api/c_api.h, version 0.x).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

MAJOR, MINOR = 0, 4  # version of the interface that the structures below follow
EXECUTE = 3  # XLA_FFI_ExecutionStage_EXECUTE
OF_METADATA = 1  # XLA_FFI_Extension_Metadata
IS_CAPTURABLE = 1  # XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE
IS_STRING = 4  # XLA_FFI_AttrType_STRING
RESOURCE_EXHAUSTED, INTERNAL = 8, 13  # XLA_FFI_Error_Code


def _xla_struct(**fields: Any) -> Any:
    return type("XlaStruct", (ctypes.Structure,), {"_fields_": tuple(fields.items())})


HEADER: dict[str, Any] = {"struct_size": ctypes.c_size_t, "extension": ctypes.c_void_p}  # of most of XLA's structs
XlaText = _xla_struct(first=ctypes.c_void_p, size=ctypes.c_size_t)  # XLA_FFI_ByteSpan
XlaBuffer = _xla_struct(**HEADER, dtype=ctypes.c_int, address=ctypes.c_void_p)  # XLA_FFI_Buffer
XlaBuffers = _xla_struct(  # XLA_FFI_Args and XLA_FFI_Rets
    **HEADER,
    count=ctypes.c_int64,
    types=ctypes.c_void_p,
    buffers=ctypes.POINTER(ctypes.POINTER(XlaBuffer)),
)
XlaAttributes = _xla_struct(  # XLA_FFI_Attrs
    **HEADER,
    count=ctypes.c_int64,
    types=ctypes.POINTER(ctypes.c_int),
    names=ctypes.c_void_p,
    values=ctypes.POINTER(ctypes.POINTER(XlaText)),
)
XlaVersion = _xla_struct(**HEADER, major=ctypes.c_int, minor=ctypes.c_int)  # XLA_FFI_Api_Version
XlaMetadata = _xla_struct(  # the fields of XLA_FFI_Metadata that a stateless handler fills in
    struct_size=ctypes.c_size_t, version=XlaVersion, traits=ctypes.c_uint32
)
XlaExtension = _xla_struct(  # XLA_FFI_Metadata_Extension
    struct_size=ctypes.c_size_t, kind=ctypes.c_int, next=ctypes.c_void_p, metadata=ctypes.POINTER(XlaMetadata)
)
XlaError = _xla_struct(**HEADER, message=ctypes.c_char_p, code=ctypes.c_int)  # XLA_FFI_Error_Create_Args
XlaDestroyed = _xla_struct(**HEADER, error=ctypes.c_void_p)  # XLA_FFI_Error_Destroy_Args
XlaStream = _xla_struct(**HEADER, context=ctypes.c_void_p, stream=ctypes.c_void_p)  # XLA_FFI_Stream_Get_Args
XlaApi = _xla_struct(  # the first fields of XLA_FFI_Api. PYFUNCTYPE keeps Python's global lock during the call.
    **HEADER,
    version=XlaVersion,
    internal=ctypes.c_void_p,
    create_error=ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(XlaError)),
    tell_error=ctypes.c_void_p,
    destroy_error=ctypes.PYFUNCTYPE(None, ctypes.POINTER(XlaDestroyed)),
    register_handler=ctypes.c_void_p,
    tell_stream=ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(XlaStream)),
)
XlaCall = _xla_struct(  # XLA_FFI_CallFrame
    struct_size=ctypes.c_size_t,
    extension=ctypes.POINTER(XlaExtension),
    api=ctypes.POINTER(XlaApi),
    context=ctypes.c_void_p,
    stage=ctypes.c_int,
    arguments=XlaBuffers,
    results=XlaBuffers,
    attributes=XlaAttributes,
)
HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(XlaCall))
# The function that executes a call. Its parameters: the call's text attribute, the addresses of the arguments, the
# addresses of the results, and a function that returns the stream's handle.
Execution = Callable[[bytes, list[int], list[int], Callable[[], int]], None]


def xla_handler(execute: Execution) -> Any:
    """Return a C callback for XLA that runs `execute` for each call. A call must have one attribute, a text."""

    def handle(frame: Any) -> int | None:
        call = frame[0]
        try:
            if call.extension and call.extension[0].kind == OF_METADATA:
                _tell_metadata(call)
            elif call.stage == EXECUTE:
                execute(_text_of(call), _addresses(call.arguments), _addresses(call.results), lambda: _stream(call))
        except MemoryError as error:
            return _xla_error(call, RESOURCE_EXHAUSTED, error)
        except BaseException as error:  # an exception must not propagate through C
            return _xla_error(call, INTERNAL, error)
        return None

    return HANDLER(handle)


def _tell_metadata(call: Any) -> None:
    """Set the metadata: the interface's version (XLA's if it is 0.x, else ours), and that calls may be captured."""
    metadata = call.extension[0].metadata[0]
    told = call.api[0].version if call.api else None
    is_known = told is not None and told.major == MAJOR
    metadata.version.major, metadata.version.minor = MAJOR, told.minor if told is not None and is_known else MINOR
    metadata.traits = IS_CAPTURABLE


def _text_of(call: Any) -> bytes:
    attributes = call.attributes
    if attributes.count != 1 or attributes.types[0] != IS_STRING:
        raise ValueError("expected one attribute, a text")
    text = attributes.values[0][0]
    return ctypes.string_at(text.first, text.size)


def _addresses(buffers: Any) -> list[int]:
    return [buffers.buffers[at][0].address or 0 for at in range(buffers.count)]


def _stream(call: Any) -> int:
    """Return the handle of the call's stream. Raise RuntimeError if XLA returns none."""
    asked = XlaStream(ctypes.sizeof(XlaStream), None, call.context, None)
    error = call.api[0].tell_stream(asked)
    if error:
        call.api[0].destroy_error(XlaDestroyed(ctypes.sizeof(XlaDestroyed), None, error))
        raise RuntimeError("XLA has no stream here")
    return asked.stream or 0


def _xla_error(call: Any, code: int, error: BaseException) -> int | None:
    """Create an XLA_FFI_Error with the exception's message and this error code. Return the address of the error."""
    text = str(error) or type(error).__name__
    told = XlaError(ctypes.sizeof(XlaError), None, text.encode(), code)
    made: int | None = call.api[0].create_error(told)
    return made
