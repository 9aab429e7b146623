#!/bin/bash
# Python: its own tests of json, re, threads and fork.
set -euo pipefail
python=/usr/bin/python3
if ! "$python" -c 'import test.test_json, test.test_threading' 2>/dev/null; then
  echo "SKIP: Python's own tests are not installed (Debian: libpython3.X-testsuite)"
  exit 77
fi
# Without the times, which differ.
"$python" -m test -j2 test_json test_re test_threading test_fork1 test_dict test_list test_bytes \
  test_itertools test_memoryview test_queue 2>&1 | grep -E '^(Result|All|[0-9]+ tests? )' ||
  { echo "Python's tests failed"; exit 1; }
