# shellcheck shell=bash disable=SC2034,SC2153
# Two guests, left and right, with a wire between their network cards that leads nowhere else: what one
# sends over rxe0 crosses it. Sourced by tools/lab.

LAB_PAIR_ADDRESSES="192.168.77.1 left 192.168.77.2 right"

# pair_side NAME OTHER NUMBER: what makes this shell's guest the one called NAME.
pair_side() {
  LAB_HOST=$1 LAB_ADDRESS=192.168.77.$3 LAB_MAC=52:54:00:77:00:0$3
  LAB_NETWORK="dgram,id=wire,local.type=unix,local.path=$LAB_WIRE/$1,remote.type=unix,remote.path=$LAB_WIRE/$2"
}

# pair CMD...: runs CMD on left, whose status is LAB_STATUS; right does what left asks it (remote).
pair() {
  local right
  need_commands qemu-system-x86_64 qemu-system-x86 flock util-linux setpriv util-linux
  kernel_fetch || exit
  root_fetch "$LAB_RELEASE" || exit
  guest_lock
  # Sockets' names are at most 107 bytes long.
  LAB_WIRE=$(mktemp -d "${TMPDIR:-/tmp}/rdmalloc-wire.XXXXXX")
  [ ${#LAB_WIRE} -lt 90 ] || die "TMPDIR is too long a name for sockets: $TMPDIR"
  LAB_PAIR=1
  (
    # The lab ($$) is gone where it was killed.
    trap 'finish; [ -e "/proc/$$/exe" ] || rm -rf "$LAB_WIRE"' EXIT
    trap 'exit 143' HUP INT TERM
    exec 8>&-
    LAB_WIRE_IS_MINE=''
    pair_side right left 2
    LAB_LIMIT=86400 # left's end is its end
    boot run "$LAB_PARTS/remote" serve
  ) > "$LAB_WIRE/right.log" 2>&1 &
  right=$!
  LAB_RIGHT=$right LAB_WIRE_IS_MINE=1
  pair_side left right 1
  boot run "$@"
  LAB_RIGHT=
  # Gone already: then it failed, and left's failure follows from that.
  kill -TERM "$right" 2> /dev/null || sed 's/^/lab: right: /' "$LAB_WIRE/right.log" >&2
  wait "$right" 2> /dev/null || true
  [ -z "$LAB_KEEP" ] || sed -n 's/^lab: kept/lab: right: kept/p' "$LAB_WIRE/right.log" >&2
}
