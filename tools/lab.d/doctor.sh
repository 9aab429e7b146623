# shellcheck shell=bash disable=SC2016,SC2034
# What is here, what is missing, and whether rxe0 works. Sourced by tools/lab.

status_tool() {
  if command -v "$1" > /dev/null; then printf '  %-20s %s\n' "$1" "$(command -v "$1")"; else
    printf '  %-20s MISSING  apt-get install %s\n' "$1" "$2"
    LAB_STATUS=1
  fi
}

# Prints a report; LAB_STATUS is 1 when a needed tool is missing.
lab_status() {
  LAB_STATUS=0
  local kernel release
  echo "tools"
  status_tool qemu-system-x86_64 qemu-system-x86
  status_tool rdma iproute2
  status_tool xz xz-utils
  status_tool gdb gdb
  status_tool debootstrap debootstrap
  echo "directory  $LAB_DIR ($(du -sh "$LAB_DIR" 2> /dev/null | cut -f1))"
  kernel=$(kernel_newest)
  echo "kernel     ${kernel:-not fetched yet (the first run does it, or: tools/lab fetch)}"
  for release in $LAB_RELEASES; do
    if root_ready "$release"; then echo "root       $release, ready"
    elif [ -e "$LAB_DIR/roots/$release.partial" ]; then
      echo "root       $release, half made; goes on with: tools/lab --release $release fetch"
    else echo "root       $release, not made; make it with: tools/lab --release $release fetch"; fi
  done
  if flock -n "$LAB_DIR/locks/guest" true; then echo "guests     none running"; else
    echo "guests     one running"
  fi
}

# Data over rxe0 between two processes of the guest, and the counters that prove it took that way.
LAB_PROBE='
set -e
ibv_devices | grep -q rxe0 || { echo "no rxe0 in ibv_devices"; exit 1; }
sent() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
before=$(sent)
ibv_rc_pingpong -d rxe0 -g 1 -n 100 > /tmp/server 2>&1 &
for try in 1 2 3 4 5 6 7 8 9 10; do
  sleep 0.3
  ibv_rc_pingpong -d rxe0 -g 1 -n 100 localhost > /tmp/client 2>&1 && break
done
wait
cat /tmp/client | tail -1
[ $(($(sent) - before)) -ge 200 ] || { echo "rxe0 carried only $(($(sent) - before)) packets"; exit 1; }
echo "rxe0 carried $(($(sent) - before)) packets"
'

lab_doctor() {
  lab_status
  [ "$LAB_STATUS" = 0 ] || die "repair the MISSING lines above first"
  local begun ended
  echo "boot       $LAB_RELEASE"
  begun=$(date +%s%N)
  LAB_LIMIT=60
  boot run "$LAB_PROBE"
  ended=$(date +%s%N)
  [ "$LAB_STATUS" = 0 ] || die "the guest's probe failed with status $LAB_STATUS"
  local up
  up=$(sed -n 's/.*lab: \([0-9.]*\) command$/\1/p' "$LAB_RUN/dmesg")
  echo "well       command began $up s after the kernel; whole run $(((ended - begun) / 1000000)) ms"
}

# The locks stay: a lab that waits for one would have it of a file that is gone, beside the next lab.
lab_clean() {
  LAB_STATUS=0
  local lock
  flock -n "$LAB_DIR/locks/guest" true || die "a guest is running; end it first"
  for lock in kernel initramfs root-trixie; do
    flock -n "$LAB_DIR/locks/$lock" true || die "another lab is making what would be deleted (lock '$lock'); end it first"
  done
  case ${1-all} in
  all) rm -rf "${LAB_DIR:?}"/{debs,kernels,kernels-bullseye,roots,runs} ;;
  trixie) rm -rf "${LAB_DIR:?}"/{roots,debs}/"$1"* ;;
  *) usage_error "clean '$1': give trixie, or nothing for all" ;;
  esac
}
