#!/bin/bash
# Programs that developers start all day, and that link much.
set -euo pipefail
ldconfig -p | cksum
readelf -aW /bin/bash | cksum
objdump -d /bin/ls | cksum
nm -D /bin/bash | cksum
cmake --version
cat >CMakeLists.txt <<'PROJECT'
cmake_minimum_required(VERSION 3.20)
project(tiny C CXX)
add_executable(tiny tiny.cc)
PROJECT
echo 'int main() { return 0; }' >tiny.cc
cmake -G Ninja -S . -B build >/dev/null && cmake --build build >/dev/null && build/tiny && echo built
gdb --version | head -1
gdb -nx -batch -ex 'break main' -ex run -ex 'print 6 * 7' -ex kill build/tiny 2>&1 | grep '^\$1'
gdb -nx -batch -ex 'python print(sum(len(str(i)) for i in range(100000)))'
file /bin/bash | cut -c1-60
