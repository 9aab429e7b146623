#!/bin/bash
# Python with large and small objects, threads, and processes made by fork and by spawn.
set -euo pipefail
cat >program.py <<'PROGRAM'
import concurrent.futures, hashlib, multiprocessing, re, threading

def work(seed):
    words = [str(i * seed) * (i % 50) for i in range(20000)]
    table = {word: len(word) for word in words}
    joined = "".join(sorted(table))
    blob = bytearray()
    for word in words:
        blob += word.encode()
    return hashlib.sha256(blob + joined.encode()).hexdigest(), len(re.findall("77", joined))

if __name__ == "__main__":
    print(work(1))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print(list(pool.map(work, range(2, 8))))
    for way in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(3) as pool:
            print(way, pool.map(work, range(2, 8)))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 4)]
    for thread in threads: thread.start()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print("fork beside threads", pool.map(work, range(2, 6)))
    for thread in threads: thread.join()
PROGRAM
/usr/bin/python3 -W ignore program.py
