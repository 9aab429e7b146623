#!/bin/bash
# In a bare Debian, as root, with the packages in /copied and this repository as the current folder: installs them, and
# does what README.md says with them, as a new user would. Ends with "used".
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
step() { echo "== $*"; }

step install
apt-get update -qq
# Two steps: the tools alone must do for an MPI job.
apt-get install -y -qq --no-install-recommends /copied/librdmalloc0_*.deb /copied/rdmalloc-tools_*.deb \
  openmpi-bin libopenmpi-dev gcc libc6-dev >/dev/null
rdmalloc info | head -3
home=/srv/newcomer
useradd --create-home --home-dir "$home" newcomer
cp examples/mpi_broadcast.c examples/regcache_mlock.c "$home"
cat >"$home"/first.sh <<'FIRST'
set -euo pipefail
cd
export OMPI_MCA_plm=isolated OMPI_MCA_rmaps_base_oversubscribe=1
mpicc -O2 mpi_broadcast.c -o program
rdmalloc run -- mpirun -n 2 ./program
rdmalloc run --stats=stats -- mpirun -n 2 ./program >/dev/null
rdmalloc job stats | head -5
rdmalloc doctor -- mpirun -n 2 ./program || (($? < 2))
FIRST
step "an MPI job under the preload"
runuser -u newcomer -- bash "$home"/first.sh

step "a C program with registered memory"
# The page's packages, program and commands, and no others.
page=docs/quick-start/io_uring.md
read -ra packages < <(sed -n 's/.*`apt-get install \(gcc [^`]*\)`.*/\1/p' "$page")
apt-get install -y -qq --no-install-recommends /copied/*.deb "${packages[@]:?$page names no packages}" >/dev/null
sed -n '/^```c$/,/^```$/{/^```/d;p}' "$page" >"$home"/program.c
{
  echo 'set -euo pipefail; cd'
  sed -n '/^```sh$/,/^```$/{/^```/d;p}' "$page"
} >"$home"/second.sh
found=$(rdmalloc doctor || true)  # its status is of all findings
if grep -q '^good *io_uring' <<<"$found"; then
  runuser -u newcomer -- bash "$home"/second.sh
else
  echo "SKIP: io_uring can't be used here, so $page is not run"
fi
cat >"$home"/third.sh <<'THIRD'
set -euo pipefail
cd
cc -O2 regcache_mlock.c $(pkg-config --cflags --libs rdmalloc-mlock) -o registered
./registered
THIRD
runuser -u newcomer -- bash "$home"/third.sh
test -f /usr/share/man/man1/rdmalloc.1.gz -a -f /usr/share/man/man3/rdmalloc_reg.3.gz -a -f /usr/share/man/man7/rdmalloc.7.gz

step remove
apt-get purge -y -qq 'librdmalloc*' rdmalloc-tools >/dev/null
if find /usr -name '*rdmalloc*' | grep .; then exit 1; fi
echo used
