#!/bin/bash
# Directory walks: many small allocations of many sizes, sorted and freed.
set -euo pipefail
ls -laR /usr/include /usr/share/doc | cksum
find /usr/include /usr/lib -name '*.h' -printf '%p %s\n' | sort | cksum
find /usr/include -name '*.h' -print0 | sort -z | xargs -0 -n 50 grep -Hc '^#' | cksum
du -a /usr/include | sort | cksum
