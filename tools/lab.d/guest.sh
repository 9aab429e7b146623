# shellcheck shell=bash disable=SC2034,SC2153
# One boot: writes the run directory, starts QEMU, watches it, reads the status. Sourced by tools/lab.

# Seconds that the guest may take: to boot (3 to 5 on an idle machine), to notice that the limit has
# passed, and for the stacks (gdb reads a dozen libraries for each process, under emulation).
LAB_BOOT_ALLOWED_S=120
LAB_NOTICE_ALLOWED_S=20
LAB_STACKS_ALLOWED_S=600

# One guest at a time, but for a pair: two cores emulate one two-core guest.
guest_lock() {
  [ -z "${LAB_PAIR-}" ] || return 0
  exec 8> "$LAB_DIR/locks/guest"
  flock -n 8 && return
  say "waiting: another guest is running"
  # In the background, since a trap has to wait for a command in the foreground.
  setpriv --pdeathsig KILL -- flock 8 &
  LAB_WAITER=$!
  wait "$LAB_WAITER"
  LAB_WAITER=
}

# Locked as long as the lab or its QEMU lives. What labs that were killed left behind, and what --keep has
# kept, goes after a day.
guest_run_directory() {
  find "$LAB_DIR/runs" -mindepth 1 -maxdepth 1 -mmin +1440 -exec flock -n {} rm -rf {} \;
  LAB_RUN=$(mktemp -d "$LAB_DIR/runs/run.XXXXXX")
  exec 7< "$LAB_RUN"
  flock -s 7
}

# Shares beside the root: "TAG ro|rw PATH" a line in LAB_RUN/shares, and QEMU's words in LAB_VIRTFS.
guest_share() {
  local path tag=share$LAB_SHARES mode=$1
  path=$(realpath -e "$2" 2> /dev/null) || usage_error "cannot share '$2': there is no such directory"
  [ -d "$path" ] || usage_error "cannot share '$2': not a directory"
  case $path in *[\ ,]*) usage_error "cannot share '$path': no blanks or commas, please" ;; esac
  LAB_SHARES=$((LAB_SHARES + 1))
  echo "$tag $mode $path" >> "$LAB_RUN/shares"
  local readonly=
  [ "$mode" = rw ] || readonly=,readonly=on
  LAB_VIRTFS+=(-virtfs "local,path=$path,mount_tag=$tag,security_model=none,multidevs=remap$readonly")
}

# guest_write MODE RELEASE LIMIT [WORD...]: the files that the guest reads.
guest_write() {
  local mode=$1 limit=$3 rows=24 columns=80
  shift 3
  if [ "$mode" = shell ] && [ -t 0 ]; then read -r rows columns < <(stty size); fi
  {
    echo "lab_run=$LAB_RUN lab_rdma=$LAB_RDMA lab_mode=$mode lab_limit=$limit"
    echo "lab_host=$LAB_HOST lab_address=$LAB_ADDRESS"
    echo "lab_hosts='$([ -z "${LAB_PAIR-}" ] || echo "$LAB_PAIR_ADDRESSES")'"
    echo "lab_rows=$rows lab_columns=$columns lab_term=${TERM:-dumb}"
    # In single quotes, which the guest's shell (busybox) knows as this one does.
    printf "lab_remote='%s'\n" "${LAB_PARTS//\'/\'\\\'\'}/remote"
    printf "lab_directory='%s'\n" "${PWD//\'/\'\\\'\'}"
  } > "$LAB_RUN/guest.env"
  cp "$LAB_PARTS/supervise" "$LAB_RUN/supervise"
  if [ $# = 1 ]; then printf '%s\n' "$1"; else printf '%q ' "$@"; fi > "$LAB_RUN/command.sh"
}

# Ends the guest when it overruns, and says which kind of overrun it was. Polls, since the marks come
# through a file system that has no notification. A pair's right guest is a grandchild of the lab ($$),
# and would outlive one that is killed.
guest_watch() {
  local qemu=$1 limit=$2 seconds=0 allowed=$LAB_BOOT_ALLOWED_S begun='' expired=''
  exec 8>&-
  while sleep 1 && kill -0 "$qemu" 2> /dev/null; do
    [ -e "/proc/$$/exe" ] || { kill -KILL "$qemu"; return; }
    seconds=$((seconds + 1))
    if [ -z "$begun" ] && [ -e "$LAB_RUN/begun" ]; then
      begun=1 seconds=0 allowed=$((limit + LAB_NOTICE_ALLOWED_S))
    elif [ -z "$expired" ] && [ -e "$LAB_RUN/expired" ]; then
      expired=1 seconds=0 allowed=$LAB_STACKS_ALLOWED_S
    elif [ "$expired" = 1 ] && [ -e "$LAB_RUN/killed_inside" ]; then
      expired=2 seconds=0 allowed=$LAB_NOTICE_ALLOWED_S
    fi
    [ "$seconds" -gt "$allowed" ] || continue
    : > "$LAB_RUN/killed"
    kill -TERM "$qemu"
    sleep 3
    kill -KILL "$qemu" 2> /dev/null
    return
  done
}

# QEMU's words for LAB_NODES NUMA nodes in LAB_NUMA: each has as many processors and as much memory as the
# others. With one node there are none, as on a machine without NUMA.
guest_nodes() {
  LAB_NUMA=()
  [ "$LAB_NODES" != 1 ] || return 0
  local node processors=$((LAB_CPUS / LAB_NODES)) mib=${LAB_MEMORY%[MG]}
  [ "${LAB_MEMORY: -1}" = M ] || mib=$((mib * 1024))
  [ $((processors * LAB_NODES)) = "$LAB_CPUS" ] && [ $((mib % LAB_NODES)) = 0 ] ||
    usage_error "--nodes is '$LAB_NODES'; --cpus ($LAB_CPUS) and --memory ($LAB_MEMORY) must be multiples of it"
  for ((node = 0; node < LAB_NODES; node++)); do
    LAB_NUMA+=(-object "memory-backend-ram,id=node$node,size=$((mib / LAB_NODES))M"
      -numa "node,nodeid=$node,cpus=$((node * processors))-$(((node + 1) * processors - 1)),memdev=node$node")
  done
}

guest_qemu() {
  local kernel=$1 root=$2 mode=$3 initramfs output=stdio,id=out,signal=on
  initramfs=$(initramfs_of "$kernel") || exit
  # In a shell, Ctrl-C is the guest's.
  [ "$mode" != shell ] || output=stdio,id=out,signal=off
  local network=()
  [ -z "$LAB_NETWORK" ] ||
    network=(-netdev "$LAB_NETWORK" -device "virtio-net-pci,netdev=wire,mac=$LAB_MAC,host_mtu=4200,romfile=")
  # A processor that says its byte-wise `rep movsb` and `rep stosb` are fast (ERMS, FSRM) has the kernel and
  # libc copy and clear by them; QEMU emulates each byte of them as an instruction of its own.
  local cpu=max,erms=off,fsrm=off
  [ "$LAB_ACCEL" != kvm ] || cpu=host
  # no_timer_check: the kernel looks whether ten ticks come within ten ticks' time, and panics where they don't; on a
  # busy machine QEMU may not run for as long.
  # Dies with this shell (pdeathsig), however the shell dies: ctest's timeout, for one, kills no more
  # than its own child.
  exec setpriv --pdeathsig KILL -- qemu-system-x86_64 \
    -accel "$LAB_ACCEL" -cpu "$cpu" -smp "$LAB_CPUS" -m "$LAB_MEMORY" "${LAB_NUMA[@]}" \
    -M pc -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$kernel/vmlinux" -initrd "$initramfs" \
    -append "console=ttyS1 panic=-1 quiet loglevel=5 mitigations=off nokaslr no_timer_check" \
    -chardev "$output" -serial chardev:out -serial "file:$LAB_RUN/kernel.log" \
    -virtfs "local,path=$root,mount_tag=rootfs,security_model=none,readonly=on,multidevs=remap" \
    -virtfs "local,path=$LAB_RUN,mount_tag=lab,security_model=none,multidevs=remap" \
    "${LAB_VIRTFS[@]}" "${network[@]}"
}

# guest_boot MODE RELEASE LIMIT [WORD...]: sets LAB_STATUS to the command's exit status, 124 or 125.
guest_boot() {
  local mode=$1 release=$2 limit=$3 root=/ kernel qemu watcher qemu_status=0
  kernel=$LAB_KERNELS/$(kernel_newest)
  [ "$release" = host ] || root=$LAB_DIR/roots/$release
  guest_write "$@"
  guest_lock
  if [ "$mode" = shell ]; then guest_qemu "$kernel" "$root" "$mode" <&0 & else
    guest_qemu "$kernel" "$root" "$mode" < /dev/null &
  fi
  qemu=$!
  LAB_QEMU=$qemu
  watcher=
  if [ "$mode" != shell ]; then
    guest_watch "$qemu" "$limit" &
    watcher=$!
  fi
  wait "$qemu" || qemu_status=$?
  LAB_QEMU=
  [ -z "$watcher" ] || kill "$watcher" 2> /dev/null || true
  guest_status "$qemu_status" "$limit"
}

guest_status() {
  local qemu_status=$1 limit=$2
  if [ -s "$LAB_RUN/status" ]; then
    LAB_STATUS=$(cat "$LAB_RUN/status")
    return
  fi
  LAB_STATUS=125
  if [ -e "$LAB_RUN/killed" ]; then
    if [ -e "$LAB_RUN/killed_inside" ]; then
      echo "lab: the guest did not end after its command was killed at the limit of $limit s" >&2
    elif [ -e "$LAB_RUN/expired" ]; then
      echo "lab: the limit of $limit s had passed, and the stacks took longer than $LAB_STACKS_ALLOWED_S s;" \
        "the guest was killed from outside, so some are missing" >&2
    elif [ -e "$LAB_RUN/begun" ]; then
      echo "lab: the guest itself hangs: it did not answer when the limit of $limit s had passed;" \
        "it was killed from outside, so there are no stacks" >&2
    else echo "lab: the guest did not get as far as the command in $LAB_BOOT_ALLOWED_S s" >&2; fi
  elif [ -s "$LAB_RUN/failed" ]; then
    echo "lab: the guest could not start the command: $(cat "$LAB_RUN/failed")" >&2
  elif [ -e "$LAB_RUN/status" ]; then
    echo "lab: the guest could not write the command's exit status to $LAB_RUN; is there no room left?" >&2
  else
    echo "lab: the guest died (QEMU's exit status $qemu_status)" >&2
  fi
  [ -e "$LAB_RUN/kernel.log" ] || return 0 # QEMU did not start
  echo "lab: its last kernel messages:" >&2
  tail -20 "$LAB_RUN/kernel.log" >&2 || true
}
