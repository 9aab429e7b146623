#!/bin/bash
# The one place that knows which packages rdmalloc needs, and installs them.
#
#   tools/setup.sh [--print] [PURPOSE...]     purposes: build test bench lab; all without any
#
# As root it installs what is missing by apt; otherwise it prints the one command that does, and
# ends with status 1. When nothing is missing it takes 0.1 s and touches nothing.
set -euo pipefail

declare -A packages=(
  # The library, its registrars, the tools, and what configuring the tests asks for.
  [build]="cmake ninja-build g++ pkg-config liburing-dev libfabric-dev libibverbs-dev librdmacm-dev
           libucx-dev libdpdk-dev libcli11-dev libfmt-dev nlohmann-json3-dev libgtest-dev libgmock-dev python3"
  # gdb and libc's symbols for the stacks of a hang; a second compiler, and the checkers of the
  # code; programs that run under the preload; tracers; Slurm and IPython Parallel, which tests start for
  # themselves; spin for the cache's protocol; Debian's packages, and the interface's description.
  [test]="gdb libc6-dbg g++-aarch64-linux-gnu qemu-user googletest clang clang-format clang-tidy binutils strace valgrind libseccomp-dev make
          PYTHON_TESTSUITE git perl file procps tar gzip bzip2 xz-utils groff-base util-linux slurm-wlm munge
          python3-ipyparallel python3-mpi4py spin debhelper dpkg-dev lintian abigail-tools"
  # MPI, the peers' allocators and fabrics, pictures, redis for a trace of it (a server without a service).
  [bench]="openmpi-bin libopenmpi-dev mpich libmpich-dev libbenchmark-dev libmimalloc2.0 libjemalloc2
           libgoogle-perftools4 qemu-user libfabric-bin libucx-dev ucx-utils gnuplot-nox redis-tools"
  # Soft-RoCE in a virtual machine, and programs to try it with.
  [lab]="qemu-system-x86 busybox-static kmod debootstrap rdma-core perftest ibverbs-utils
         ibverbs-providers iproute2 python3"
)

usage() { echo "usage: tools/setup.sh [--print] [build] [test] [bench] [lab]" >&2; }

print_only=no
purposes=()
for argument in "$@"; do
  case $argument in
    --print) print_only=yes ;;
    build | test | bench | lab) purposes+=("$argument") ;;
    *)
      echo "setup: '$argument' is not a purpose" >&2
      usage
      exit 2
      ;;
  esac
done
((${#purposes[@]})) || purposes=(build test bench lab)

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  wanted=$(for purpose in "${purposes[@]}"; do echo "${packages[$purpose]}"; done | xargs)
  wanted=${wanted/PYTHON_TESTSUITE/"Python's own tests (libpython3-testsuite)"}
  echo "setup: no apt on this system, and this script knows Debian's package names only. Install
the equivalents of these and run again with --no-setup:
  $wanted" >&2
  exit 1
fi

# Python's own tests are packaged for each of its versions apart.
python_testsuite() {
  local version
  version=$(python3_version) && echo "libpython$version-testsuite"
}
python3_version() {
  local found
  found=$(dpkg-query -W -f='${Version}' python3 2>/dev/null) && [[ $found ]] ||
    found=$(apt-cache show --no-all-versions python3 2>/dev/null | sed -n 's/^Version: //p')
  [[ $found =~ ^([0-9]+\.[0-9]+) ]] && echo "${BASH_REMATCH[1]}"
}

missing_packages() {
  local wanted have name
  wanted=$(for purpose in "${purposes[@]}"; do echo "${packages[$purpose]}"; done)
  wanted=${wanted/PYTHON_TESTSUITE/$(python_testsuite || true)}
  wanted=$(xargs -n 1 <<<"$wanted" | sort -u)
  # dpkg-query fails for names it never heard of; they are simply not in the list. The first letter is what is
  # wanted of a package (h: on hold, which apt leaves as it is), the second what it is: i, installed.
  have=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' 2>/dev/null | sed -n 's/^.i  *//p' |
    sort -u)
  comm -23 <(echo "$wanted") <(echo "$have") | while read -r name; do
    # pkg-config is a package of its own name in some releases and part of pkgconf in others.
    [[ $name == pkg-config ]] && command -v pkg-config >/dev/null || echo "$name"
  done | xargs
}

lists_are_there() { compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; }

apt() {
  # The lock is waited for: a machine that has just booted updates itself.
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 -qq \
    -o Dpkg::Use-Pty=0 "$@" </dev/null
}

install_by_apt() {
  # Recommended packages are left out: nothing here needs them and they are half as much again.
  apt install -y --no-install-recommends "$@"
}

missing=$(missing_packages)
if [[ -z $missing ]]; then exit 0; fi
if [[ $print_only == yes ]]; then
  echo "apt-get install -y --no-install-recommends $missing"
  exit 0
fi
if ((EUID != 0)); then
  echo "setup: missing packages. Install them with this command and run again:
  sudo apt-get install -y --no-install-recommends $missing" >&2
  exit 1
fi

echo "setup: installing $missing"
lists_are_there || apt update
missing=$(missing_packages)  # the version of Python is known by now
# shellcheck disable=SC2086  # words, on purpose
install_by_apt $missing || {
  # Lists that are older than the archive name packages that are gone from it.
  apt update
  install_by_apt $missing
}
left=$(missing_packages)
if [[ $left ]]; then
  echo "setup: apt succeeded, but these are still missing: $left" >&2
  exit 1
fi
