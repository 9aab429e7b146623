#!/bin/bash
# Archives and compressors, with threads, there and back.
set -euo pipefail
tar -C /usr -cf all.tar --sort=name --mtime=@0 --owner=0 --group=0 include/c++ include/linux
cksum <all.tar
for way in 'gzip -n' 'xz -T2 -3' 'bzip2'; do
  command -v "${way%% *}" >/dev/null || { echo "SKIP: ${way%% *} is not installed"; continue; }
  head -c 12000000 all.tar | $way -c >packed
  echo "$way $(cksum <packed)"
  ${way%% *} -dc <packed | cksum
done
mkdir unpacked
tar -C unpacked -xf all.tar
find unpacked -type f | wc -l
