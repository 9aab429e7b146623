#!/bin/bash
# A root like a container's, and a command in it, as env(1) takes one:
#
#   container.sh LOWER TOOLS SHM_SIZE USER [NAME=VALUE...] COMMAND [ARGUMENT...]
#
# LOWER is the root that it is a copy of (by an overlay: nothing of it is changed); TOOLS, a folder, is
# seen as /mine. There is no ssh, a /sys to read only, a /dev of its own with SHM_SIZE of /dev/shm, and an empty /tmp.
# USER: root, bare (root without any capability), or nobody. Started by unshare --mount --pid --fork.
set -euo pipefail
lower=$1 tools=$2 shm_size=$3 user=$4
shift 4
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$lower,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
cd /mnt/root
rm -f usr/bin/ssh usr/bin/rsh
: > .dockerenv
mkdir -p mine proc sys tmp dev
mount --bind "$tools" mine
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero random urandom; do
  : > "dev/$node"
  mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/shm
mount -t tmpfs -o "mode=1777,size=$shm_size" tmpfs dev/shm
case $user in
  root) as=() ;;
  bare) as=(setpriv --inh-caps=-all --bounding-set=-all) ;;
  nobody) as=(setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all) ;;
esac
exec chroot . /usr/bin/env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp "${as[@]}" env "$@"
