"""The files of the repository, for the tests of this folder."""
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def files():
    """Paths relative to the root of all files that are, or would be, committed."""
    try:
        listed = subprocess.run(
            ["git", "-c", f"safe.directory={ROOT}", "-C", ROOT, "ls-files", "-co",
             "--exclude-standard", "-z"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        names = [name for name in listed.stdout.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        # A source archive, without git: everything but what building makes.
        names = [os.path.relpath(os.path.join(folder, name), ROOT)
                 for folder, _, found in os.walk(ROOT) for name in found]
        names = [name for name in names if not name.startswith(("build/", "out/", ".git/"))]
    return sorted(name for name in names if os.path.isfile(os.path.join(ROOT, name)))


def sources(*folders):
    """C and C++ files, of some folders only when any are named."""
    return [name for name in files() if name.endswith((".c", ".cc", ".h", ".hpp"))
            and (not folders or name.startswith(tuple(folder + "/" for folder in folders)))]


def text(name):
    with open(os.path.join(ROOT, name), encoding="utf-8", errors="replace") as file:
        return file.read()


def skip(why):
    """Ends the test as skipped (77 is what cmake/testing.cmake tells ctest)."""
    print("SKIP:", why)
    raise SystemExit(77)


def version_14(program):
    """`program` in the one version our code is formatted for and checked by, which Debian 12 has.

    Other versions of these programs disagree with it about layout, so they can't judge."""
    for name in (program + "-14", program):
        try:
            told = subprocess.run([name, "--version"], stdout=subprocess.PIPE, check=True, text=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        if " version 14." in told.stdout:
            return name
    return skip(f"no {program} of version 14 here; tools/setup.sh installs it on Debian 12")


def without_comments(text):
    """The code alone; string literals are emptied too, so that messages may name system calls."""
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found.group().count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)
