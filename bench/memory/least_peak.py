#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What memory_patterns would take at its peak under an allocator that keeps what is freed.

    least_peak.py                    # vectors, sawtooth and messages, scale 0.2
    least_peak.py --scale 1 vectors

Free spans are joined at once, a block takes the lowest place that is long enough or the one that it
fits best, at units of 4 or 64 KiB; nothing is cached, and no page that was written is given back. Pages
that no block wrote do not count. So whatever an allocator takes below this it has given back, or
moved pages, inside free or realloc. MiB, without the program itself."""
import argparse
import bisect
import random

KIB, MIB = 1024, 1024 * 1024


class Heap:
    def __init__(self, unit, is_best_fit):
        self.unit, self.is_best_fit = unit, is_best_fit
        self.starts, self.lengths = [], {}  # free runs, by unit
        self.written = bytearray()
        self.live = self.most_live = 0

    def allocate(self, size):
        wanted = -(-size // self.unit)
        fitting = (start for start in self.starts if self.lengths[start] >= wanted)
        start = min(fitting, key=self.lengths.get, default=None) if self.is_best_fit else next(fitting, None)
        if start is None:
            start = self.at_the_end(wanted)
        else:
            length = self.lengths.pop(start)
            self.starts.remove(start)
            if length > wanted:
                self.insert(start + wanted, length - wanted)
        return start, wanted

    def at_the_end(self, wanted):
        end = len(self.written)
        start = end
        if self.starts and self.starts[-1] + self.lengths[self.starts[-1]] == end:
            start = self.starts.pop()
            del self.lengths[start]
        self.written.extend(bytes(start + wanted - end))
        return start

    def insert(self, start, length):
        bisect.insort(self.starts, start)
        self.lengths[start] = length

    def free(self, block):
        start, length = block
        place = bisect.bisect(self.starts, start)
        if place < len(self.starts) and self.starts[place] == start + length:
            length += self.lengths.pop(self.starts.pop(place))
        if place > 0 and self.starts[place - 1] + self.lengths[self.starts[place - 1]] == start:
            self.lengths[self.starts[place - 1]] += length
        else:
            self.insert(start, length)

    def write(self, block, size):
        count = -(-size // self.unit)
        self.written[block[0] : block[0] + count] = b"\1" * count

    def full(self, size):
        block = self.allocate(size)
        self.write(block, size)
        self.add(size)
        return block, size

    def add(self, size):
        self.live += size
        self.most_live = max(self.most_live, self.live)

    def release(self, block):
        self.free(block[0])
        self.live -= block[1]

    def peak(self):
        return self.written.count(1) * self.unit


def vectors(heap, scale, rng):
    most = int(8 * MIB * scale)
    sizes, capacities, blocks = [0] * 64, [0] * 64, [None] * 64
    growing = list(range(64))
    while growing:
        v = rng.choice(growing)
        step = min(rng.randint(1, 64 * KIB), most - sizes[v])
        size = sizes[v] + step
        if size > capacities[v]:
            capacities[v] = max(2 * sizes[v], size)
            moved = heap.allocate(capacities[v])
            heap.write(moved, size)
            heap.add(size)
            if blocks[v] is not None:
                heap.free(blocks[v])
            heap.live -= sizes[v]
            blocks[v] = moved
        else:
            heap.write(blocks[v], size)
            heap.add(step)
        sizes[v] = size
        if size == most:
            growing.remove(v)


def sawtooth(heap, scale, rng):
    for _ in range(10):
        blocks = [heap.full(rng.randint(int(64 * KIB * scale), int(2 * MIB * scale))) for _ in range(300)]
        rng.shuffle(blocks)
        for block in blocks:
            heap.release(block)


def messages(heap, scale, rng):
    ring = [None] * 100
    for i in range(int(5000 * scale)):
        if ring[i % 100] is not None:
            heap.release(ring[i % 100])
        least = 4 * KIB << rng.randrange(8)
        ring[i % 100] = heap.full(rng.randint(least, 2 * least))


PATTERNS = {"vectors": vectors, "sawtooth": sawtooth, "messages": messages}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.2)
    parser.add_argument("patterns", nargs="*", default=list(PATTERNS))
    options = parser.parse_args()
    for name in options.patterns:
        for unit in (4, 64):
            for is_best_fit in (False, True):
                heap = Heap(unit * KIB, is_best_fit)
                PATTERNS[name](heap, options.scale, random.Random(1))
                fit = "best fit" if is_best_fit else "first fit"
                print(f"{name}: {unit} KiB, {fit}: {heap.peak() / MIB:.0f} MiB, live {heap.most_live / MIB:.0f}")


if __name__ == "__main__":
    main()
