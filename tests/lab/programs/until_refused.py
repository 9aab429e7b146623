#!/usr/bin/python3
"""Asks malloc for 8 MiB blocks until it refuses, frees them, and does it again.

Prints the blocks of both rounds, errno at the first refusal, and whether a block of 64 bytes was to
be had while all others were taken.
"""
import ctypes

BYTES = 8 << 20

libc = ctypes.CDLL(None, use_errno=True)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
blocks = (ctypes.c_void_p * 4096)()  # made before: nothing may be wanted while memory is out


def fill():
    for count in range(len(blocks)):
        blocks[count] = libc.malloc(BYTES)
        if not blocks[count]:
            return count
        ctypes.memset(blocks[count], 1, 1)
    return len(blocks)


def main():
    first = fill()
    error = ctypes.get_errno()
    small = libc.malloc(64)
    libc.free(small)
    for i in range(first):
        libc.free(blocks[i])
    second = fill()
    for i in range(second):
        libc.free(blocks[i])
    print("blocks", first, second, "errno", error, "small", int(bool(small)))


main()
