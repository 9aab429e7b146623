# shellcheck shell=bash disable=SC2016,SC2034
# A second Debian to boot: debootstrap's minimal system plus the fabrics, the MPI and the allocators
# under test. Sourced by tools/lab.
#
#   roots/RELEASE            a finished root, nothing else ever has this name
#   roots/RELEASE.packages   the list it was made from; when the list changes, the rest is installed
#   roots/RELEASE.partial    one being made; a later run goes on from it
#   debs/RELEASE             its packages, kept so that an interrupted run downloads nothing twice

LAB_RELEASES="trixie"

# What a root must hold, by release. Names differ between releases (soname and t64 renames).
root_packages() {
  local common="gdb procps iproute2 rdma-core ibverbs-providers ibverbs-utils perftest
    openmpi-bin libfabric-bin ucx-utils librdmacm1t64 libjemalloc2 python3 criu"
  case $1 in
  trixie) echo "$common libmimalloc3 libtcmalloc-minimal4t64 liburing2 libnuma1" ;;
  *) usage_error "no package list for release '$1'; allowed: host trixie" ;;
  esac
}

root_ready() {
  [ -d "$LAB_DIR/roots/$1" ] && root_packages "$1" | cmp -s - "$LAB_DIR/roots/$1.packages"
}

# The Debian mirror that this machine's apt uses. Read at run time, never stored.
apt_mirror() {
  local mirror
  mirror=$(apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^Debian|//p' | head -1)
  [ -n "$mirror" ] || die "apt knows no Debian mirror here; run 'apt-get update' and try again"
  echo "$mirror"
}

# Runs a command in the root being made, in a mount namespace of its own, so that nothing stays
# mounted however this ends. /mnt holds what apt needs and what must not be kept.
in_root() {
  local root=$1 scratch=$2 debs=$3
  shift 3
  # shellcheck disable=SC2016
  unshare --mount --propagation private --fork --kill-child bash -euc '
    root=$1 scratch=$2 debs=$3; shift 3
    mount -t proc proc "$root/proc"
    for node in null zero full random urandom tty; do
      [ -e "$root/dev/$node" ] || : > "$root/dev/$node"
      mount --bind "/dev/$node" "$root/dev/$node"
    done
    mount --bind "$scratch" "$root/mnt"
    mount --bind "$debs" "$root/var/cache/apt/archives"
    for file in resolv.conf hosts; do
      [ -e "/etc/$file" ] || continue
      [ -e "$root/etc/$file" ] || : > "$root/etc/$file"
      mount --bind "$(readlink -f "/etc/$file")" "$root/etc/$file"
    done
    exec chroot "$root" /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C \
      DEBIAN_FRONTEND=noninteractive APT_CONFIG=/mnt/apt.conf "$@"
  ' in_root "$root" "$scratch" "$debs" "$@"
}

# apt's proxies and our sources, for the time of the making only.
root_scratch() {
  local scratch=$1 release=$2 mirror=$3 setting value
  echo "deb $mirror $release main" > "$scratch/sources.list"
  {
    echo 'Dir::Etc::sourcelist "/mnt/sources.list"; Dir::Etc::sourceparts "-";'
    echo 'APT::Install-Recommends "false"; APT::Sandbox::User "root"; Acquire::Languages "none";'
    for setting in Acquire::http::Proxy Acquire::https::Proxy; do
      value=$(apt_setting "$setting")
      [ -z "$value" ] || echo "$setting \"$value\";"
    done
  } > "$scratch/apt.conf"
}

root_bootstrap() {
  local partial=$1 release=$2 mirror=$3 debs=$4 log=$5 proxy
  [ ! -e "$partial.bootstrapped" ] || return 0
  say "making a minimal $release (debootstrap; about a minute)"
  rm -rf "$partial"
  proxy=$(apt_setting Acquire::http::Proxy)
  [ -z "$proxy" ] || export http_proxy=$proxy
  # In a mount namespace of its own: killed, it would leave its proc mounted in there.
  unshare --mount --propagation private --fork --kill-child \
    debootstrap --variant=minbase --cache-dir="$debs" "$release" "$partial" "$mirror" >> "$log" 2>&1 || return
  : > "$partial.bootstrapped"
}

root_install() {
  local partial=$1 release=$2 scratch=$3 debs=$4 log=$5 packages
  read -rd '' -a packages < <(root_packages "$release") || true
  say "installing Open MPI, libfabric, UCX and the allocators into it (about two minutes)"
  # No daemon is started in there, and services' postinst scripts must not try.
  printf '#!/bin/sh\nexit 101\n' > "$partial/usr/sbin/policy-rc.d"
  chmod 755 "$partial/usr/sbin/policy-rc.d"
  in_root "$partial" "$scratch" "$debs" dpkg --configure -a >> "$log" 2>&1 &&
    in_root "$partial" "$scratch" "$debs" apt-get -q update >> "$log" 2>&1 &&
    in_root "$partial" "$scratch" "$debs" apt-get -qy install "${packages[@]}" >> "$log" 2>&1
}

root_make() {
  local release=$1
  ! root_ready "$release" || return 0 # another run made it while this one waited for the lock
  local partial=$LAB_DIR/roots/$release.partial debs=$LAB_DIR/debs/$release
  local log=$LAB_DIR/roots/$release.log mirror scratch
  need_commands debootstrap debootstrap unshare util-linux chroot coreutils
  [ "$(id -u)" = 0 ] || die "making a $release root needs root (debootstrap); run 'tools/lab --release $release fetch' as root once"
  mirror=$(apt_mirror) || exit
  if [ -d "$LAB_DIR/roots/$release" ]; then
    flock -n "$LAB_DIR/locks/guest" true || die "the $release root must be updated, but a guest is running; end it first"
    rm -rf "$partial"
    mv "$LAB_DIR/roots/$release" "$partial"
    : > "$partial.bootstrapped"
  fi
  mkdir -p "$debs/partial"
  : > "$log"
  rm -rf "$LAB_DIR/roots/scratch.$release".* # of one that was killed
  scratch=$(mktemp -d "$LAB_DIR/roots/scratch.$release.XXXXXX")
  root_scratch "$scratch" "$release" "$mirror"
  if ! { root_bootstrap "$partial" "$release" "$mirror" "$debs" "$log" &&
    root_install "$partial" "$release" "$scratch" "$debs" "$log"; }; then
    rm -rf "$scratch"
    tail -5 "$log" >&2
    die "making the $release root failed (whole log: $log); run the same again to go on"
  fi
  rm -rf "$scratch" "$partial/etc/apt/sources.list" "$partial/var/lib/apt/lists"
  rm -f "$partial.bootstrapped"
  root_packages "$release" > "$LAB_DIR/roots/$release.packages"
  mv "$partial" "$LAB_DIR/roots/$release"
  say "the $release root is ready: $LAB_DIR/roots/$release"
}

# root_fetch RELEASE: makes the root unless it is there. "host" needs nothing.
root_fetch() {
  [ "$1" != host ] || return 0
  root_packages "$1" > /dev/null
  root_ready "$1" || with_lock "root-$1" "waiting: another lab is making the $1 root" root_make "$1"
}
