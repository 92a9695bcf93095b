"""Memory that one process exports and another imports, by IPC and as a file descriptor of cuMemCreate.

Says what the exporter and the importer were charged together: the memory once, and a context each."""

import ctypes
import subprocess
import sys

from cu import MIB, Prop, alloc, begin, call, check, free_bytes, say

SIZE = 512 * MIB


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


def importer() -> None:
    begin()
    before = free_bytes()
    handle, address, shared = (
        Handle.from_buffer_copy(sys.stdin.buffer.read(64)),
        ctypes.c_uint64(),
        ctypes.c_uint64(),
    )
    codes = [call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, 1)]
    if sys.argv[1] == "fd":
        codes.append(
            call("cuMemImportFromShareableHandle", ctypes.byref(shared), ctypes.c_void_p(int(sys.argv[2])), 1)
        )
    say(codes=codes, charged=before - free_bytes())


def exporter() -> None:
    begin()
    before = free_bytes()
    code, one = alloc(SIZE)
    handle, made, file = Handle(), ctypes.c_uint64(), ctypes.c_uint64()  # of an int, which is its lower half
    check("cuIpcGetMemHandle", ctypes.byref(handle), one)
    prop = Prop(1, 1, 1, 0)
    size = ctypes.c_size_t(SIZE)
    words = ["none"]
    if call("cuMemCreate", ctypes.byref(made), size, ctypes.byref(prop), ctypes.c_uint64(0)) == 0:
        check("cuMemExportToShareableHandle", ctypes.byref(file), made, 1, ctypes.c_uint64(0))
        words = ["fd", str(file.value)]
    charged = before - free_bytes()
    pass_on = [file.value] if file.value else []
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, input=bytes(handle), stdout=subprocess.PIPE, pass_fds=pass_on, check=True)
    sys.stdout.write(done.stdout.decode())
    say(code=code, charged=charged, exported=words[0])


importer() if len(sys.argv) > 1 else exporter()
