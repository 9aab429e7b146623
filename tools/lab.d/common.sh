# shellcheck shell=bash
# What every part of tools/lab uses: messages, the cache directory, locks. Sourced, never run.

say() { [ -n "${LAB_QUIET-}" ] || echo "lab: $*" >&2; }
# Exit statuses that are the lab's own, chosen so that a command's are seldom mistaken for them:
# 2 bad usage, 124 the command's limit (as timeout(1) does), 125 the lab itself failed.
die() { echo "lab: $*" >&2; exit 125; }
usage_error() { echo "lab: $*" >&2; echo "lab: see 'tools/lab --help'" >&2; exit 2; }

# Where kernels, roots and runs lie. It can be deleted at any time no guest runs; everything in it is
# made again on demand.
lab_dir_default() {
  if [ -n "${XDG_CACHE_HOME-}" ]; then echo "$XDG_CACHE_HOME/rdmalloc-lab"
  elif [ -d "${HOME-}" ] && [ -w "${HOME-}" ]; then echo "$HOME/.cache/rdmalloc-lab"
  else echo "/var/tmp/rdmalloc-lab-$(id -u)"; fi
}

lab_dir() { echo "${RDMALLOC_LAB_DIR:-$(lab_dir_default)}"; }

lab_dir_prepare() {
  case $LAB_DIR in
  /*) ;;
  *) usage_error "RDMALLOC_LAB_DIR is '$LAB_DIR': give an absolute path" ;;
  esac
  # The guest's kernel command line and 9p options split at blanks and commas.
  case $LAB_DIR in
  *[\ ,]*) usage_error "RDMALLOC_LAB_DIR is '$LAB_DIR': no blanks or commas, please" ;;
  esac
  LAB_KERNELS=$LAB_DIR/kernels
  [ "$LAB_KERNEL" = host ] || LAB_KERNELS=$LAB_DIR/kernels-$LAB_KERNEL
  mkdir -p "$LAB_DIR"/{debs,roots,runs,locks} "$LAB_KERNELS" ||
    die "cannot make $LAB_DIR; set RDMALLOC_LAB_DIR to a directory that can be written"
  # Others could plant a kernel or a root that we then run.
  [ -O "$LAB_DIR" ] || die "$LAB_DIR belongs to another user; set RDMALLOC_LAB_DIR to a folder of your own"
}

# with_lock NAME SAYING CMD...: runs CMD holding LAB_DIR/locks/NAME; says SAYING when it must wait.
# The lock goes with the process (flock), so nothing is left behind by a killed run. CMD runs in a
# subshell that alone holds the descriptor; long-lived children must close it (guest.sh does).
with_lock() {
  local name=$1 saying=$2
  shift 2
  (
    exec 9> "$LAB_DIR/locks/$name"
    flock -n 9 || { say "$saying"; flock 9; }
    "$@"
  )
}

# need COMMAND PACKAGE...: the commands that are missing, with what installs them.
need_commands() {
  local missing=() command package
  while [ $# -gt 0 ]; do
    command=$1 package=$2
    shift 2
    command -v "$command" > /dev/null || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] || die "missing here: ${missing[*]}; install with: apt-get install ${missing[*]}"
}

# apt's own words for a setting, or nothing.
apt_setting() { apt-config shell value "$1" | sed -n "s/^value='\(.*\)'$/\1/p"; }
