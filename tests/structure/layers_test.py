#!/usr/bin/python3
"""Which room includes which, and what of the allocator the registration cache uses.

An arrow upward fails, by an include or by a name that the linker binds.
Seen to fail: with regcache/pools/buffer_pool.h included in regcache/core/reg.cc, with alloc/purge/purge.h in
regcache/core/drop.cc, with a call of purge_hold taken out of the list in alloc/for_regcache.h and with
purge_holds added there, with one include of alloc/cache more in alloc/pages/events.cc, with
cache_enter_shard() declared and called in alloc/pages/dirty.cc, with find_undumpable_files() in regcache/core/state.cc,
with slab_give_back() for page_heap_free() in a journey, with its last two steps the other way round, with a seventh.
"""
import collections
import glob
import os
import re
import subprocess
import sys
import unittest

import tree

# Room: what it may include, beside itself and the public headers. Lowest first.
MAY_INCLUDE = {
    "alloc/os": "",
    "alloc/core": "alloc/os",
    "alloc/pages": "alloc/os alloc/core",
    "alloc/slabs": "alloc/os alloc/core alloc/pages",
    "alloc/cache": "alloc/os alloc/core alloc/pages alloc/slabs",
    "alloc/large": "alloc/os alloc/core alloc/pages alloc/slabs alloc/cache",
    "alloc/heaps": "alloc/os alloc/core alloc/pages alloc/slabs alloc/cache alloc/large",
    "alloc/purge": "alloc/os alloc/core alloc/pages alloc/slabs alloc/cache alloc/large alloc/heaps",
    "alloc/process": "alloc/os alloc/core alloc/pages alloc/slabs alloc/cache alloc/large alloc/heaps alloc/purge",
    "alloc/api": "alloc/os alloc/core alloc/pages alloc/slabs alloc/cache alloc/large alloc/heaps alloc/purge "
                 "alloc/process",
    "alloc/interpose": "alloc/os alloc/core alloc/pages alloc/slabs alloc/cache alloc/large alloc/heaps "
                       "alloc/purge alloc/process",
    "alloc/for_regcache": "alloc/os alloc/core alloc/pages alloc/heaps alloc/purge alloc/process alloc/api "
                          "alloc/interpose",
    "regcache/core": "alloc/for_regcache",
    "regcache/foreign": "alloc/for_regcache regcache/core",
    "regcache/checkpoint": "alloc/for_regcache regcache/core",
    "regcache/heaps": "alloc/for_regcache regcache/core",
    "regcache/pools": "alloc/for_regcache regcache/core",
    "regcache/prefault": "alloc/for_regcache regcache/core",
    "regcache/notifiers": "alloc/for_regcache regcache/core",
    "regcache/rooms": "regcache/core regcache/checkpoint regcache/foreign regcache/heaps regcache/pools",
    "regcache/interpose": "alloc/for_regcache regcache/notifiers",
    "regcache/registrars": "",  # libraries of their own
    "regcache/verbs_shim": "regcache/registrars",
}
# Files that are a room of their own, or another's.
ROOM_OF = {"alloc/for_regcache": "alloc/for_regcache", "regcache/rooms": "regcache/rooms"}

# What a lower room uses and the linker finds above: of alloc/ functions that run before any constructor could
# leave a pointer to them, of regcache/ the two tables of what the core asks of rooms above it (core/rooms.h).
LINKED_UPWARD = {"rdmalloc::detail::initialise()", "rdmalloc::ensure_settings()", "rdmalloc::detail::fork_recover()",
                 "rdmalloc::detail::initialised", "rdmalloc::detail::fork_word", "rdmalloc::statistics_at_exit()",
                 "rdmalloc::regcache::holders", "rdmalloc::regcache::watcher"}

# Headers that a library of its own may read, since they have inline code only.
HEADERS_ALONE = {("regcache/registrars", "alloc/core/sized_struct.h")}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"((?:alloc|regcache)/[^"]+)"', flags=re.M)
NO_NAMES = set("alignas sizeof static_assert defined if noexcept const void int char bool unsigned long".split())


def room(name):
    stem = re.sub(r"\.[\w.]+$", "", name)
    return ROOM_OF.get(stem) or "/".join(name.split("/")[:2])


def below(name):
    names = set(MAY_INCLUDE[name].split())
    return names | set(MAY_INCLUDE["alloc/for_regcache"].split()) if "alloc/for_regcache" in names else names


def declared(header):
    """What a header declares outside of functions and classes, as far as words tell."""
    code = re.sub(r"namespace[\w: ]*\{", "", tree.without_comments(tree.text(header)))
    outside, depth = "", 0
    for letter in code:
        depth = max(depth + (letter == "{") - (letter == "}"), 0)
        if depth == 0 and letter != "}":
            outside += letter
    names = set(re.findall(r"\b(?:struct|class|enum(?: class)?)\s+(?:alignas\(\w+\)\s+)?(\w+)", outside))
    names |= set(re.findall(r"\b(\w+)\s*\(", outside))
    names |= set(re.findall(r"\b(\w+)\s*(?:\[[^\]]*\])?\s*(?:=[^;]*)?;", outside))
    names |= set(re.findall(r"#\s*define (\w+)", code))
    return {name for name in names - NO_NAMES if not name.endswith("_t") and len(name) > 1
            and not name.startswith("rdmalloc_")}


class Layers(unittest.TestCase):
    def test_rooms_include_only_rooms_below_them(self):
        self.assertEqual({room(name) for name in tree.sources("alloc", "regcache")} - set(MAY_INCLUDE), set(),
                         "rooms without a row in MAY_INCLUDE")
        up = collections.defaultdict(list)
        for name in tree.sources("alloc", "regcache"):
            for header in INCLUDE.findall(tree.text(name)):
                pair = room(name), room(header)
                if pair[0] != pair[1] and pair[1] not in MAY_INCLUDE[pair[0]].split() \
                        and (pair[0], header) not in HEADERS_ALONE:
                    up[pair].append(f"{name} includes {header}")
        wrong = [line for pair, lines in sorted(up.items()) for line in [f"{' -> '.join(pair)}:", *lines]]
        self.assertEqual(wrong, [], "\n".join(["upward:", *wrong]))

    def test_the_objects_call_rooms_below_them(self):
        folders = glob.glob(os.path.join(BUILD, "CMakeFiles", "rdmalloc_*_objects.dir"))
        sources = tree.sources("alloc", "regcache")  # and not what earlier builds have left
        objects = [(folder, name) for folder in folders
                   for name in glob.glob(os.path.join(folder, "*", "**", "*.o"), recursive=True)
                   if os.path.relpath(name, folder).removesuffix(".o") in sources]
        self.assertGreater(len(objects), 50, f"objects in {BUILD}")
        wanted, found = collections.defaultdict(set), {}
        for folder, name in objects:
            here = room(os.path.relpath(name, folder))
            listed = subprocess.run(["nm", "-C", name], stdout=subprocess.PIPE, check=True, text=True).stdout
            for kind, symbol in re.findall(r"^[0-9a-f ]{16} (\w) (rdmalloc\b.*)$", listed, flags=re.M):
                if kind == "U":
                    wanted[here].add(symbol)
                elif kind in "TDBR":
                    found[symbol] = here
        wrong = {symbol: f"{here} -> {found[symbol]}: {symbol}" for here, symbols in wanted.items() for symbol in symbols
                 if symbol in found and found[symbol] not in {here} | below(here)}
        self.assertEqual({symbol: wrong[symbol] for symbol in wrong if symbol not in LINKED_UPWARD}, {})
        self.assertEqual(LINKED_UPWARD - set(wrong), set(), "names of LINKED_UPWARD that nothing calls upward")

    def test_the_table_has_no_circle(self):
        seen = set()
        for name, below in MAY_INCLUDE.items():
            self.assertEqual(set(below.split()) - seen, set(), name)
            seen.add(name)

    def test_journeys_go_down_through_six_files_at_most(self):
        journeys = []
        for place in ("alloc", "regcache"):
            for block in re.findall(r"^    [a-z ].*\n(?:      \S+ +\w+ .*\n)+", tree.text(f"{place}/README.md"), flags=re.M):
                journeys.append([(f"{place}/{file}", function) for file, function
                                 in re.findall(r"^      (\w+/\S+\.(?:h|cc)) +(\w+) ", block, flags=re.M)])
        journeys = [steps for steps in journeys if steps]  # lists of files are of the same form
        self.assertEqual([steps[0][1] for steps in journeys],
                         ["allocate", "release", "purge_span", "rdmalloc_reg_get"])
        for steps in journeys:
            self.assertLessEqual(len(steps), 6, steps)
            for above, (file, function) in zip([None, *steps], steps):
                code = tree.without_comments(tree.text(file))
                self.assertTrue(re.search(rf"(?m)^[^;=\n]*[ *:]{function}\([^;]*\{{", code), f"{file} does not define {function}()")
                if above is None:
                    before = ""
                    continue
                self.assertIn(room(file), [room(above[0]), *below(room(above[0]))], f"{above[0]} -> {file}")
                before += tree.without_comments(tree.text(above[0]))
                self.assertTrue(re.search(rf"\b{function}\(", before), f"{function}() is not called above {file}")

    def test_what_the_cache_uses_of_the_allocator_is_listed(self):
        words = set()
        for name in tree.sources("regcache"):
            if room(name) not in ("regcache/registrars", "regcache/verbs_shim"):
                words |= set(re.findall(r"\w+", tree.without_comments(tree.text(name))))
        listed = re.findall(r'#include "([^"]+)"\n((?://   .*\n)+)', tree.text("alloc/for_regcache.h"))
        self.assertGreater(len(listed), 15)
        for header, names in listed:
            names = set(re.findall(r"\w+", names))
            self.assertEqual(names, declared(header) & words,
                             f"{header}: the names listed in alloc/for_regcache.h, and those that regcache/ uses")


if __name__ == "__main__":
    BUILD = sys.argv.pop(1)
    unittest.main(argv=[sys.argv[0], "-v"])
