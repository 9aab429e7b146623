#!/bin/bash
# Runs ./test, or another command of the repository, in a Debian that has nothing but its essential
# packages, to see that the set-up names all we need:
#
#   tools/bare-debian.sh [--keep] [--copy FOLDER] [COMMAND ARGUMENT...]      default: .ci/run --quick
#
# Needs root, debootstrap, 6 GB in $TMPDIR (/var/tmp) and the archive this machine's apt is set to use.
# What is committed is what is tried. --keep leaves the system there, for a look; --copy puts a folder's files
# into its /copied.
set -euo pipefail
cd "$(dirname "$0")/.."
keep=no
copied=
if [[ ${1:-} == --keep ]]; then keep=yes && shift; fi
if [[ ${1:-} == --copy ]]; then copied=${2:?"bare-debian: --copy wants a folder"} && shift 2; fi
(($#)) || set -- .ci/run --quick
((EUID == 0)) || { echo "bare-debian: needs root, for chroot" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "bare-debian: apt-get install debootstrap" >&2; exit 1; }

# The archive is whatever this machine uses; it is never written down.
read -r archive release < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' \
  'Created-By: Packages' 'Component: main' | grep -v -- '-\(security\|updates\|backports\)' | sed -n 1p)
root=$(mktemp -d "${TMPDIR:-/var/tmp}/bare-debian.XXXXXX")
cleanup() { if [[ $keep == yes ]]; then echo "kept: $root"; else rm -rf --one-file-system "$root"; fi; }
trap cleanup EXIT

# Else a test's unprivileged child can't pass the root directory itself.
chmod 755 "$root"

debootstrap --variant=minbase "$release" "$root" "$archive" >"$root.log" 2>&1 ||
  { tail -20 "$root.log" >&2; exit 1; }
rm -f "$root.log"
# apt's own settings, and names of hosts: a mirror or proxy may need them.
rm -f "$root/etc/apt/sources.list"
cp -a /etc/apt/. "$root/etc/apt/"
mkdir -p "$root/usr/share/keyrings"
cp -a /usr/share/keyrings/. "$root/usr/share/keyrings/"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
if [[ $copied ]]; then cp -r "$copied" "$root/copied"; fi
git clone -q --no-hardlinks . "$root/rdmalloc"

# Mounts in a namespace of their own: they go with it, however this ends.
unshare --mount --pid --fork --kill-child bash -c '
  root=$1
  shift
  mount --make-rprivate /
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  cd /
  # Nothing of this shell: a bare environment too.
  exec env -i CI=true HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" \
    /bin/bash -c "cd /rdmalloc && exec \"\$@\"" bare "$@"
' namespace "$root" "$@" </dev/null
