#!/usr/bin/python3
"""What the pages tell a reader to type is there: programs, their options, tests. (Paths: structure.references.)

    commands_test.py BUILD

Of every page (README.md, CONTRIBUTING.md, docs/, the rooms' README.md), in code blocks and between backticks:
build/release/bin/NAME is a program of the build; an option behind it, behind `./run` and behind `rdmalloc COMMAND`, and any
behind a script of the tree, is one that its --help names; `ctest -R REGEX` finds a test, and so does a name like
`lab.matrix`. What the quick starts say is run besides (quick_start_test.py).

And what the man pages declare is what the headers declare.

Seen to fail: with `--jobbs`, `bench_thread` and `bench.cores_limitz` in bench.md; with a struct rdmalloc_domain_stats, which
there is not, in rdmalloc_reg(3).
"""
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

BUILD = pathlib.Path(sys.argv.pop(1))
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")),
         *(path for room in ("alloc", "regcache", "tests/model") for path in ROOT.glob(f"{room}/README.md"))]
WITHOUT_HELP = ("regcache_model", "tests/abi/description_test.py")  # their text has their options
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]+")


def run(*words):
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=60, check=False)
    return done.stdout


@functools.cache
def help_of(program):
    return run(*program.split(), "--help")


def knows(program, option):
    if program.endswith(WITHOUT_HELP):
        return option.encode() in (ROOT / program).read_bytes()
    return re.search(rf"{option}(?![\w-])", help_of(program)) is not None


@functools.cache
def tests():
    return re.findall(r"Test +#\d+: (\S+)", run("ctest", "--test-dir", str(BUILD), "-N"))


def commands(text):
    """(number of the line, command) of a page: lines of code blocks, joined where they go on, and what stands between backticks."""
    is_code, begun = False, None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif is_code or line.startswith("    "):
            words = (begun[1] + " " if begun else "") + line.strip().removeprefix("$ ")
            begun = (begun[0] if begun else number, words.removesuffix("\\").strip()) if words.endswith("\\") else None
            if begun is None:
                yield number, words
    for found in re.finditer(r"`([^`]+)`", re.sub(r"(?ms)^```.*?^```$", lambda block: re.sub(r"[^\n]", "", block[0]), text)):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[1].split())


def program_of(words):
    """What is asked for --help; None where the options that follow are not ours."""
    if found := re.search(r"(?:^|[\s(`])(?:build/release/)?bin/(\w+)|^(\w+_compare|bench_\w+)\b", words):
        name = found[1] or found[2]
        return str(BUILD / "bin" / name) if (BUILD / "bin" / name).exists() else None
    if words.startswith("./run"):
        return str(BUILD / "bin" / "bcast_compare")
    if found := re.match(r"(?:python3 )?((?:tools|tests|bench)/[\w/.-]+\.py|tools/lab|tools/setup\.sh)\b", words):
        return found[1]
    if found := re.match(r"rdmalloc (run|job|doctor|info|checkpoint)\b", words):
        return f"{BUILD}/bin/rdmalloc {found[1]}"
    return None


class Commands(unittest.TestCase):
    maxDiff = None

    def check(self, wrong_of):
        wrong, seen = [], 0
        for page in PAGES:
            for number, words in commands(page.read_text()):
                for problem in wrong_of(words):
                    seen += 1
                    if problem:
                        wrong.append(f"{page.relative_to(ROOT)}:{number}: {problem}")
        self.assertEqual(wrong, [])
        return seen

    def test_programs_are_built(self):
        def wrong_of(words):
            for name in re.findall(r"\bbuild/release/bin/(\w+)", words):
                yield "" if (BUILD / "bin" / name).exists() else f"no program {name}"
        self.assertGreater(self.check(wrong_of), 20)

    def test_options_are_in_the_program_s_help(self):
        def wrong_of(words):
            program = program_of(words)
            if program is None:
                return
            # Of ours: not of the command that it starts, nor of what stands behind a pipe.
            ours = re.split(r" -- | \| | && |  +#|;", words)[0].split(pathlib.Path(program.split()[0]).name, 1)[-1]
            for option in OPTION.findall(re.sub(r"'[^']*'", "''", ours)):
                yield "" if knows(program, option) else f"{program} has no {option}: {words}"
        self.assertGreater(self.check(wrong_of), 60)

    def test_tests_that_are_named_exist(self):
        def wrong_of(words):
            for given in re.findall(r"ctest (?:--?[\w-]+ \S+ )*-R '?([^'\s]+)", words):
                yield "" if any(re.search(given, name) for name in tests()) else f"no test {given}"
            if re.fullmatch(r"(lab|docs|bench|structure|preload|golden|tools|model|abi|cross)\.[a-z]\w+", words):
                yield "" if any(name.startswith(words) for name in tests()) or words.endswith((".md", ".py", ".h", ".c", ".cc")) \
                    else f"no test {words}"
        self.assertGreater(self.check(wrong_of), 60)


class ManPages(unittest.TestCase):
    """Each SYNOPSIS compiles behind the headers: what it declares is what they declare."""

    @unittest.skipUnless(shutil.which("man") and shutil.which("cc"), "needs man and cc")
    def test_a_synopsis_declares_what_the_headers_do(self):
        declared = 0
        for page in sorted(ROOT.glob("docs/man/*.3")):
            text = subprocess.run(["man", "-P", "cat", "-l", str(page)], env={**os.environ, "MANWIDTH": "400"}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
            text = re.sub(r".\x08", "", text).replace("‐", "-")
            synopsis = re.search(r"^SYNOPSIS\n(.*?)^\s+Link with", text, flags=re.M | re.S)[1]
            headers = re.findall(r"^\s*#include .*$", synopsis, flags=re.M)
            rest = re.sub(r"^\s*#include .*$", "", synopsis, flags=re.M)
            declared += rest.count(";")
            source = "\n".join([*headers, "#include <rdmalloc/rdmalloc.h>", "#include <rdmalloc/regcache.h>",
                                *(f"#include <{name.relative_to(ROOT / 'include')}>"
                                  for name in sorted((ROOT / "include").glob("rdmalloc/registrar_*.h"))), rest])
            done = subprocess.run(["cc", "-fsyntax-only", "-Werror", f"-I{ROOT}/include", "-x", "c", "-"], input=source,
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            self.assertEqual((done.returncode, done.stdout), (0, ""), page.name)
        self.assertGreater(declared, 90)


if __name__ == "__main__":
    unittest.main()
