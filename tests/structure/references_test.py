#!/usr/bin/python3
"""What comments and documents refer to is there: paths, files, sections, and numbers of the code.

Seen to fail, before what they found was mended: with tests/structure/tidy.sh in .clang-tidy, regcache/freeze in
docs/design.md, design.md, "Purging" in options.h, 15 instructions in alloc/README.md and 64 blocks in
docs/design.md; with a file no_such.cc in a comment; and with 5 blocks that a class starts with in record 0006.
And with run_step() and send_home(), which are gone, in notes of tests/bench and shards_test.cc.
"""
import json
import os
import re
import sys
import unittest

import tree

FILES = [name for name in tree.files()
         if not name.startswith((".git", "tests/abi/")) and name != "tests/structure/references_test.py"]
EXTENSIONS = r"(?:h|hpp|cc|c|cpp|py|md|sh|cmake|json|pml|ld|map)"
PATH = re.compile(rf"(?<![\w./<$~{{}}*-])((?:[A-Za-z_][\w.-]*/)+[\w.-]+\.{EXTENSIONS})(?![\w/])")
FOLDER = re.compile(r"(?<![\w./<$~{}*-])((?:alloc|regcache|tests|tools|bench|docs|cmake|examples)/[\w./-]*\w)(?![\w*(])")
FILE = re.compile(r"(?<![\w./<$~{}*-])([a-z_]\w*\.(?:h|hpp|cc|md))(?![\w/(])")
SECTION = re.compile(r'([\w/-]+\.md)[`)]*,\s+(?:(?://|#)\s*)?"([^"\n]+)"')

# Paths and files of other projects, of what a program writes, and made-up ones.
ELSEWHERE = re.compile(r"^(a|b|out|elf|ucs|uct|CLI|prov|lib|opal|ucm|valgrind|rpmalloc|sysdeps|share)/")
NOT_OURS = ["alloc/process", "cmake/rdmallocConfig.cmake", "docs/nothing.md", "tests/structure/layers_test.py"]
FILES_OF_OTHERS = set("malloc.h mpi.h source.cc page.md program.cc tiny.cc together.cc limits.h stdbool.h "
                      "stddef.h".split())
# Name sources of glibc and of other allocators.
WITHOUT = ("tests/preload/glibc_tests.py", "docs/decisions/0003-double-frees.md")


def lines():
    for name in FILES:
        if name not in WITHOUT:
            for number, line in enumerate(tree.text(name).splitlines(), 1):
                yield name, number, line


# A note of how a test was seen to fail, and what it names: functions, constants, members, files.
NOTE = re.compile(r"seen to fail", re.I)
NAMED = re.compile(r"\bk[A-Z]\w+|\b[A-Za-z]\w*(?=\(\))|(?<!\.)\b[a-z]\w*_\w+|\b\w+\.(?:cc|h|py|cmake|c)\b")
NAMED_OF_OTHERS = {"test_socket"}  # CPython's


def code(name):
    """The words of a file outside its comments."""
    text = tree.text(name)
    if name.endswith((".c", ".cc", ".h", ".hpp")):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    else:
        text = re.sub(r'"""(?:(?!""").)*"""', "", text, flags=re.S)
        text = re.sub(r"#[^\n]*", "", text)
    return set(re.findall(r"\w+", text))


def paragraphs(name):
    """The paragraphs of comments and of a script's docstrings, each with its first line's number."""
    mark = r"\s*//+" if name.endswith((".c", ".cc", ".h")) else r"\s*#+"
    begin, words, in_docstring = 0, [], False
    for number, line in enumerate([*tree.text(name).splitlines(), ""], 1):
        quotes = line.count('"""') if name.endswith(".py") else 0
        is_comment = bool(in_docstring or quotes or re.match(mark, line))
        in_docstring ^= quotes % 2 == 1
        body = re.sub(rf"^{mark}", "", line).strip() if is_comment else ""
        if body:
            begin = begin if words else number
            words.append(body)
        elif words:
            yield begin, " ".join(words)
            words = []


class References(unittest.TestCase):
    def test_paths_and_files_exist(self):
        # A path may be named from a folder within: heaps/heap.h. And a group of files: alloc/process/fork.
        ends = {"/".join(path.split("/")[begin:]) for name in tree.files()
                for path in (name, *(name[:at] for at, letter in enumerate(name) if letter == "/"),
                             os.path.splitext(name)[0])
                for begin in range(path.count("/") + 1)}
        wrong = []
        for name, number, line in lines():
            named = PATH.findall(line) + FOLDER.findall(line)
            if "include" not in line:
                named += [one for one in FILE.findall(line) if one not in FILES_OF_OTHERS]
            for path in named:
                if path not in ends and path not in NOT_OURS and "NAME" not in path \
                        and not ELSEWHERE.match(path):
                    wrong.append(f"{name}:{number}: {path}")
        self.assertEqual(wrong, [])

    def test_notes_of_failures_name_what_is_there(self):
        files = {os.path.basename(name) for name in tree.files()}
        # tests/structure has lists of words that are no longer used.
        of = {name: code(name) for name in tree.files() if not name.startswith("tests/structure/")
              and name.endswith((".c", ".cc", ".h", ".py", ".sh", ".txt", ".cmake"))}
        words, wrong, count = set().union(*of.values()), [], 0
        for name in of:
            if not name.startswith(("tests/", "examples/")):
                continue
            # A test may be named by how its name begins.
            tests = [re.sub(r"^I\d+_", "", word) for word in of[name] if "_" in word]
            for number, text in paragraphs(name):
                if not NOTE.search(text):
                    continue
                count += 1
                # Between backticks stands what a test was given, wrong on purpose.
                wrong += [f"{name}:{number}: {named}" for named in NAMED.findall(re.sub("`[^`]*`", "", text))
                          if named not in words and named not in files and named not in NAMED_OF_OTHERS
                          and not any(test.startswith(re.sub(r"^I\d+_", "", named)) for test in tests)]
        self.assertGreater(count, 200)
        self.assertEqual(wrong, [])

    def test_sections_exist(self):
        wrong = []
        for name in FILES:
            for document, section in SECTION.findall(tree.text(name)):
                found = [other for other in FILES if other == document or other.endswith("/" + document)]
                near = [other for other in found if os.path.dirname(name).startswith(os.path.dirname(other))]
                # A part of a heading, or how a paragraph begins.
                there = "\n".join(tree.text(other) for other in near or found)
                if not re.search(rf"^#.*{re.escape(section)}|^(- )?(\*\*)?{re.escape(section)}\b", there,
                                 flags=re.M | re.I):
                    wrong.append(f"{name}: {document}, \"{section}\"")
        self.assertEqual(wrong, [])

    def test_numbers_of_the_code_are_those_of_the_documents(self):
        paths = json.loads(tree.text("tests/golden/fast_paths.json"))["g++ 12.2"]["paths"]

        def count(path):
            return paths[path]["instructions"]

        def constant(header, name):
            return int(re.search(rf"\b{name} = (\d+)", tree.text(header)).group(1))
        slots = constant("alloc/core/size_class.h", "kMagazineSlots")
        pair = int(re.search(r"kPairSlots == (\d+)", tree.text("alloc/cache/magazine.h")).group(1))
        first = constant("alloc/cache/bin_limits.cc", "kFirstLimit")
        classes = constant("alloc/core/size_class.h", "kFineMax") // 16 + 8 * 7
        steps = constant("alloc/cache/bin_table.h", "kStepMax") // 8 + 1
        blocks = "docs/decisions/0006-blocks-and-threads.md"
        for document, pattern, values in [
                (blocks, r"`ret`, free (\d+):", [count("free(64)")]),
                (blocks, r"a table of (\d+) one-byte offsets", [steps]),
                (blocks, r"\*\*Few classes\*\*: (\d+),", [classes]),
                (blocks, r"\*\*Magazines\*\* hold (\d+) pointers", [slots]),
                (blocks, r"A class starts with (\d+) blocks", [first]),
                ("docs/decisions/0007-free-pages.md", r"\*\*Decay time\*\*: (\d+) s",
                 [constant("alloc/core/options.h", "decay_ms") // 1000]),
                ("docs/settings.md", r"`RDMALLOC_DECAY_MS`[^\n]*?\| `?(5000)`? \|",
                 [constant("alloc/core/options.h", "decay_ms")]),
                ("docs/design.md", r"no lock, no atomic; (\d+) instructions", [count("malloc(64)")]),
                (blocks, r"malloc of a small block is (\d+) instructions", [count("malloc(64)")]),
                ("docs/decisions/0008-heaps.md", r"in a heap is (\d+) instructions and free (\d+) ",
                 [count("heap malloc(64)"), count("heap free(64)")]),
                ("alloc/README.md", r"cache_try_allocate_at +(\d+) instructions", [count("malloc(64)")]),
                ("docs/design.md", r"one compare-and-swap for (\d+) blocks", [slots]),
                (blocks, r"Size adapts \(1 … (\d+)\)", [pair]),
                ("alloc/README.md", r"a pair (\d+)", [pair]),
                ("alloc/README.md", r"(\d+) blocks of one class at most", [slots]),
                ("docs/many-cores.md", r"uses all (\d+) classes", [classes])]:
            found = re.search(pattern, tree.text(document))
            self.assertIsNotNone(found, f"{document}: {pattern}")
            self.assertEqual([int(value) for value in found.groups()], values, f"{document}: {pattern}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
