#!/bin/bash
# A shell that forks hundreds of times: subshells, pipelines, background jobs, process substitution.
set -euo pipefail
total=0
for i in $(seq 150); do
  total=$((total + $(echo "$i" | cat | tr -d '\n' | wc -c)))
done
echo "$total"
for i in $(seq 60); do (sleep 0; echo "$i" >"out$i") & done
wait
cat out* | sort -n | cksum
f() { local n=$1; ((n == 0)) && echo bottom || (f $((n - 1))); }
f 40
diff <(seq 1000 | sed 's/7/x/') <(seq 1000 | awk '{ sub(/7/, "x"); print }') && echo same
seq 3000 | xargs -n 30 -P 4 sh -c 'echo $#' | sort | uniq -c
array=(); for i in $(seq 20000); do array+=("value $i"); done; echo "${#array[@]} ${array[19999]}"
(trap 'echo trapped; exit 3' USR1; kill -USR1 $BASHPID; sleep 5) || echo "status $?"
