"""What tests/lab/sessions_test.py runs, and what it asserts of the lines that programs/sessions.cc
prints. tests/lab/session_verdicts_test.py tries it on lines made up there."""
import re
from typing import NamedTuple, Optional

BROADCASTS, BYTES = 5, 258048  # and one more in each session, after a purge
ANEW = "300"  # milliseconds between two
INSIDE_OUTER = "20 outer"
# rdmalloc counts what threads' magazines hold as live: 1.25 MiB for each of the first eight threads,
# of which a session uses two at most. A leaked buffer a session would be 252 KiB each.
SLACK_BYTES = 2 * 1280 * 1024
# Of glibc's growth: the same blocks take more here, since classes are a quarter apart at most.
GROWTH_FACTOR = 1.5
SLACK_RSS_KIB = 4096 + SLACK_BYTES // 1024
SLACK_MAPPINGS = 4
SLACK_MAPPINGS_OF_BLOCKS = 8  # they come with time: 6 in six sessions beside four busy loops


class Transport(NamedTuple):
    words: tuple  # mpirun's
    registers: bool = False  # what is sent, each time anew or by libfabric's cache
    has_packets: bool = False  # over rxe0
    puts: bool = False


def mtl(provider, **more):
    return Transport(("--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca",
                      "opal_common_ofi_provider_include", provider), **more)


def btl(provider, **more):
    # No other btl that reaches the other rank: what arrives came by this one. Mode 2: for messages
    # as well as for windows.
    return Transport(("--mca", "pml", "ob1", "--mca", "btl", "ofi,self", "--mca", "btl_ofi_mode", "2",
                      "--mca", "osc", "rdma", "--mca", "opal_common_ofi_provider_include", provider),
                     **more)


MTL_TCP = mtl("tcp;ofi_rxm")
MTL_VERBS = mtl("verbs;ofi_rxm", registers=True, has_packets=True)
BTL_TCP = btl("sockets", puts=True)
BTL_UDP = btl("udp;ofi_rxd", puts=True)
BTL_VERBS = btl("verbs;ofi_rxd", has_packets=True)
T0, T1, OFF = {}, {"RDMALLOC_NOTIFY": "explicit"}, {"RDMALLOC_NOTIFY": "off"}


class Run(NamedTuple):
    name: str
    transport: Transport
    how: str
    sessions: int
    settings: Optional[dict]  # rdmalloc's; None: glibc
    like: Optional[str] = None  # the run under glibc that this one must not outgrow; None: no growth


def runs(full):
    # Three at least, since what grows is told from the second session on.
    many, few, anew = (100, 100, 100) if full else (6, 3, 4)
    fewer = 30  # of btl ofi in its other tiers: it takes up to 10 s a session over sockets, emulated
    yield Run("mtl tcp, glibc", MTL_TCP, ANEW, anew, None)
    yield Run("mtl tcp, T0", MTL_TCP, ANEW, anew, T0, "mtl tcp, glibc")
    yield Run("mtl verbs, T0", MTL_VERBS, INSIDE_OUTER, many, T0)
    yield Run("mtl verbs, T1", MTL_VERBS, INSIDE_OUTER, many, T1)
    yield Run("mtl verbs twice, T0", MTL_VERBS, ANEW, 2, T0)
    yield Run("btl tcp, T0", BTL_TCP, INSIDE_OUTER, few, T0)
    yield Run("btl verbs, T0", BTL_VERBS, INSIDE_OUTER, few, T0)
    if not full:
        return
    # Not mtl verbs: without notifications libfabric's cache would send old bytes, which matrix.py shows. The
    # others register nothing that outlives a message.
    yield Run("mtl tcp, T1", MTL_TCP, ANEW, anew, T1, "mtl tcp, glibc")
    yield Run("mtl tcp, without notifications", MTL_TCP, ANEW, anew, OFF, "mtl tcp, glibc")
    yield Run("btl tcp, T1", BTL_TCP, INSIDE_OUTER, fewer, T1)
    yield Run("btl tcp, without notifications", BTL_TCP, INSIDE_OUTER, fewer, OFF)
    yield Run("btl verbs, T1", BTL_VERBS, INSIDE_OUTER, fewer, T1)
    yield Run("btl verbs, without notifications", BTL_VERBS, INSIDE_OUTER, fewer, OFF)
    yield Run("btl udp twice, T0", BTL_UDP, ANEW, 2, T0)
    yield Run("btl verbs twice, T0", BTL_VERBS, ANEW, 2, T0)


class Output(NamedTuple):
    is_done: bool
    packets: int
    sessions: list  # of dictionaries
    last_line: str


def parse(text):
    """What one run printed, and around it the script: 'status S packets P'."""
    lines = [line for line in text.splitlines() if re.match(r"cycle \d", line)]
    sessions = [{name: int(value) for name, value in re.findall(r"(\w+) (\d+)", line)}
                for line in lines]
    end = re.search(r"(?m)^status (\d+) packets (\d+)$", text)
    words = text.strip().splitlines()
    return Output(bool(end) and end[1] == "0", int(end[2]) if end else 0, sessions,
                  words[-1] if words else "")


def growth(output, name):
    """From the second session, the first having set things up that stay, to the last."""
    return output.sessions[-1][name] - output.sessions[1][name]


def growth_problems(output, reference):
    """More than glibc's of as many sessions beside it; what Open MPI leaks is in both."""
    share = len(output.sessions) - 2
    theirs = {name: 0 for name in ("live_bytes", "fds", "mappings", "threads")}
    if reference is not None and share > 0:
        share /= len(reference.sessions) - 2
        theirs = {name: max(0, growth(reference, name)) * share for name in theirs}
    allowed = {"live_bytes": theirs["live_bytes"] * GROWTH_FACTOR + SLACK_BYTES,
               # Not of glibc's pages: it keeps a heap of 200 MiB between two sessions, or does not.
               "rss_kib": theirs["live_bytes"] * GROWTH_FACTOR / 1024 + SLACK_RSS_KIB,
               "fds": theirs["fds"], "mappings": theirs["mappings"] + SLACK_MAPPINGS,
               "mappings_of_blocks": SLACK_MAPPINGS_OF_BLOCKS, "threads": theirs["threads"]}
    for name, most in allowed.items():
        if growth(output, name) > most:
            yield f"{name} grew by {growth(output, name)}, allowed {most:.0f}"


def rdmalloc_problems(run, sessions):
    second = sessions[1]
    asked = 2 * (BROADCASTS + 1)
    if any(one["own_misses"] + one["own_hits"] != asked for one in sessions):
        yield f"our cache was not asked {asked} times in each session"
    # One more or less: where malloc finds a place for the first buffer is Open MPI's doing too.
    if any(abs(one["own_misses"] - second["own_misses"]) > 1 for one in sessions[1:]):
        yield "our cache's hit rate changed"
    if any(one["own_live"] > second["own_live"] + 1 for one in sessions):
        yield "registrations of our cache accumulate"
    if not all(one["purges_seen"] for one in sessions):
        yield "an observer of this session's saw no purge"
    if run.settings.get("RDMALLOC_NOTIFY") == "off":
        return
    if not all(one["attached"] and one["notified"] for one in sessions):
        yield "in some session the notifier was not attached, or notified of nothing"
    if run.how == ANEW and (not second["attaches"] or
                            any(one["attaches"] != second["attaches"] for one in sessions[1:])):
        yield "the notifier was not attached anew in each session"


def problems_of(run, output, reference=None):
    sessions = output.sessions
    if not output.is_done or [one["cycle"] for one in sessions] != list(range(1, run.sessions + 1)):
        return [f"{run.name}: {len(sessions)} of {run.sessions} sessions; {output.last_line}"]
    second = sessions[1]
    wrong = [] if run.settings is None else list(growth_problems(output, reference))
    if any(one["wrong"] for one in sessions):
        wrong.append("wrong bytes")
    for name in ("registrations", "deregistrations"):
        if any(one[name] != second[name] for one in sessions[1:]):
            wrong.append(f"{name} differ from the second session's")
    if bool(second["registrations"]) != run.transport.registers and run.transport != BTL_VERBS:
        wrong.append(f"{second['registrations']} registrations")
    if bool(output.packets) != run.transport.has_packets:
        wrong.append(f"{output.packets} packets on the device")
    if any(one["components_left"] for one in sessions) and run.how == ANEW:
        wrong.append("component files are still loaded after a session")
    if run.settings is not None:
        wrong += rdmalloc_problems(run, sessions)
    return [f"{run.name}: {what}" for what in wrong]
