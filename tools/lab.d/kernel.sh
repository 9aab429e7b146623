# shellcheck shell=bash
# The guest's kernel: Debian's own package, downloaded and unpacked under LAB_DIR, never installed.
# That of the release that apt here knows, or Debian 11's (--kernel bullseye, Linux 5.10). Sourced by
# tools/lab.
#
#   kernels/VERSION            unpacked and complete; a half-made one is called VERSION.partial.
#                              Debian 11's: kernels-bullseye/VERSION
#     root/                    linux-image and busybox-static as dpkg unpacks them
#     vmlinux                  the ELF kernel out of the compressed one: boots seconds sooner
#     initramfs-HASH.cpio      busybox, the modules below and the guest's init; HASH is of its recipe

# What the guest loads, each after what it depends on (modules.dep).
LAB_MODULES="virtio_pci 9pnet_virtio 9p overlay virtio_net
  crc32_generic crc32-pclmul dummy veth
  ib_core ib_uverbs rdma_cm rdma_ucm rdma_rxe"

kernel_newest() {
  find "$LAB_KERNELS" -mindepth 1 -maxdepth 1 -type d ! -name '*.partial' \
    ! -name 'initramfs.*' -printf '%f\n' |
    sort -V | tail -1
}

# kernel_extract VMLINUZ OUT: the ELF image inside a bzImage. The kernel's own script does the same
# by trying each magic number at each place where it occurs; so do we.
kernel_extract() {
  local magic unpack position written=0
  while read -r magic unpack; do
    while read -r position; do
      # The compressed image has a tail that the decompressors complain of: their status says nothing, that of
      # the writing does. An image cut short would begin as a whole one.
      tail -c "+$((position + 1))" "$1" | $unpack 2> /dev/null | cat > "$2" || written=${PIPESTATUS[2]}
      [ "$written" = 0 ] || break 2
      [ "$(head -c 4 "$2" | tail -c 3)" != ELF ] || return 0
    done < <(LC_ALL=C grep -aobP "$magic" "$1" | cut -d: -f1)
  done << 'MAGIC'
\xfd7zXZ\x00 xz -dc
\x28\xb5\x2f\xfd zstd -dc
\x1f\x8b\x08 gzip -dc
MAGIC
  rm -f "$2"
  return 1
}

# apt for the packages of LAB_KERNEL. Of another release it has lists of its own, and what is installed
# here is no candidate.
kernel_apt() {
  local command=$1 apt=$LAB_DIR/debs/kernel-$LAB_KERNEL/apt options=(-q -o APT::Sandbox::User=root)
  shift
  [ "$LAB_KERNEL" = host ] || options+=(-o "Dir::Etc::sourcelist=$apt/sources.list"
    -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache"
    -o Dir::State::status=/dev/null -o Acquire::Languages=none)
  "$command" "${options[@]}" "$@"
}

# Its sources are written at run time and go with the lists.
kernel_apt_prepare() {
  [ "$LAB_KERNEL" != host ] || return 0
  local apt=$LAB_DIR/debs/kernel-$LAB_KERNEL/apt mirror
  mirror=$(apt_mirror) || exit
  mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial
  echo "deb $mirror $LAB_KERNEL main" > "$apt/sources.list"
  kernel_apt apt-get update > "$LAB_KERNELS/fetch.log" 2>&1 || {
    tail -3 "$LAB_KERNELS/fetch.log" >&2
    die "apt could not read the lists of $LAB_KERNEL at this machine's mirror"
  }
}

# Two tries: apt's lists may be missing or older than the mirror.
apt_download() {
  local log=$LAB_KERNELS/fetch.log
  kernel_apt apt-get download "$@" > "$log" 2>&1 && return
  [ "$(id -u)" != 0 ] || kernel_apt apt-get update >> "$log" 2>&1 || true
  kernel_apt apt-get download "$@" >> "$log" 2>&1 && return
  tail -3 "$log" >&2
  die "apt could not download $* (log: $log); does 'apt-get update' work here?"
}

kernel_make() {
  [ -z "$(kernel_newest)" ] || return 0 # made while we waited for the lock
  need_commands apt-get apt dpkg dpkg xz xz-utils
  local package version partial debs=$LAB_DIR/debs/kernel-$LAB_KERNEL
  kernel_apt_prepare
  say "fetching Debian's kernel and busybox (about 70 MB, once)"
  package=$(kernel_apt apt-cache depends linux-image-amd64 2> /dev/null | awk '/Depends:/ {print $2; exit}')
  if [ -z "$package" ] && [ "$(id -u)" = 0 ]; then
    kernel_apt apt-get update > /dev/null || true
    package=$(kernel_apt apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')
  fi
  [ -n "$package" ] || die "apt knows no linux-image-amd64; run 'apt-get update' and try again"
  version=${package#linux-image-}
  partial=$LAB_KERNELS/$version.partial
  mkdir -p "$debs"
  (cd "$debs" && apt_download "$package" busybox-static) || exit
  rm -rf "$partial"
  mkdir -p "$partial/root"
  local deb
  for deb in "$debs/${package}"_*.deb "$debs"/busybox-static_*.deb; do
    dpkg -x "$deb" "$partial/root" || die "cannot unpack $deb; delete it and try again"
  done
  kernel_finish "$partial" "$version" && mv "$partial" "$LAB_KERNELS/$version" ||
    die "cannot make $LAB_KERNELS/$version; is there no room left?"
  say "kernel $version is ready"
}

# Callers that look at a status have turned off `set -e`: so each step is asked for its own here, and in
# initramfs_pack().
kernel_finish() {
  local partial=$1 version=$2
  "$partial/root/bin/busybox" depmod -b "$partial/root" "$version" && {
    kernel_extract "$partial/root/boot/vmlinuz-$version" "$partial/vmlinux" ||
      cp "$partial/root/boot/vmlinuz-$version" "$partial/vmlinux" # boots too, a few seconds later
  }
}

kernel_fetch() {
  [ -n "$(kernel_newest)" ] || with_lock kernel "waiting: another lab is fetching the kernel" kernel_make
}

# The files of LAB_MODULES in loading order. modules.dep lists what a module needs behind it, the
# nearest first, hence the tac. What this kernel has built in, or not at all, has no file.
initramfs_modules() {
  local module line
  for module in $LAB_MODULES; do
    line=$(awk -F: -v tail="/$module.ko" '
      { file = $1; sub(/\.xz$/, "", file) }
      substr(file, length(file) - length(tail) + 1) == tail { print; exit }' "$1/modules.dep")
    [ -z "$line" ] || tr ' ' '\n' <<< "${line//:/}" | tac
  done | awk 'NF && !seen[$0]++'
}

initramfs_make() {
  local kernel=$1 out=$2 tree
  [ ! -s "$out" ] || return 0
  rm -rf "$LAB_KERNELS"/initramfs.* # of labs that were killed; we hold the lock
  tree=$(mktemp -d "$LAB_KERNELS/initramfs.XXXXXX") && initramfs_pack "$kernel" "$tree" > "$out.partial" || {
    rm -rf "$tree" "$out.partial"
    die "cannot pack $out; is there no room left?"
  }
  rm -rf "$tree" "$kernel"/initramfs-*.cpio
  mv "$out.partial" "$out"
}

# initramfs_pack KERNEL TREE: to standard output.
initramfs_pack() {
  local kernel=$1 tree=$2 file
  local modules=$kernel/root/lib/modules/${1##*/} busybox=$kernel/root/bin/busybox
  mkdir -p "$tree"/{bin,dev,proc,sys,lab,lower,upper,root,modules} &&
    cp "$busybox" "$tree/bin/busybox" &&
    install -m 755 "$LAB_PARTS/init" "$tree/init" &&
    initramfs_modules "$modules" > "$tree/files" || return
  while read -r file; do
    case $file in
    *.xz) xz -dc "$modules/$file" > "$tree/modules/$(basename "$file" .xz)" ;;
    *) cp "$modules/$file" "$tree/modules/" ;;
    esac || return
  done < "$tree/files"
  sed 's,.*/,,; s,\.xz$,,' "$tree/files" > "$tree/load-order" &&
    (cd "$tree" && find . | "$busybox" cpio -o -H newc 2> /dev/null)
}

# Prints the path of the initramfs for kernel directory $1, made when its recipe has changed.
initramfs_of() {
  local hash out
  hash=$( (echo "$LAB_MODULES"; cat "$LAB_PARTS/init" "$LAB_PARTS/kernel.sh") | sha256sum | cut -c1-12)
  out=$1/initramfs-$hash.cpio
  [ -s "$out" ] || with_lock initramfs "waiting: another lab is packing the initramfs" \
    initramfs_make "$1" "$out" || exit
  echo "$out"
}
