#!/bin/bash
# Large blocks that grow, and threads: sort, and what else reads much.
set -euo pipefail
seq 400000 | awk '{ print ($1 * 7919) % 1000003 }' >numbers
sort --parallel=4 -S 200M -n numbers | cksum
sort --parallel=2 -S 1M numbers | cksum
sort -u numbers | split -l 20000 - part && sort -m part* | cksum
awk '{ seen[$1 % 5000]++; text = text substr($1, 1, 1) } END { print length(seen), length(text) }' \
  numbers
tac numbers | rev | cksum
sed 's/7/seven/g' numbers | cksum
paste numbers numbers | join -j 1 - <(sort numbers | head -0) | cksum
