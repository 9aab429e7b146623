#!/usr/bin/python3
"""Debian's packages of what is committed are built, looked at by lintian, and used in a bare Debian (use.sh).

    package_test.py REPOSITORY

Skipped where it can't be done: it wants root, debhelper, lintian, debootstrap and the archive that apt is set to use.
Nothing is fetched by the build itself: it runs without a network.

Seen to fail: without debian/*.lintian-overrides, and with the package of a registrar left out of those that are used.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(sys.argv[1])
HERE = pathlib.Path(__file__).resolve().parent


def skip(why):
    print("SKIP:", why)
    sys.exit(77)


def run(*command, folder=None, **environment):
    print("+", *command, flush=True)
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, text=True, check=False,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        print(done.stdout[-8000:])
        sys.exit(f"FAILED: {command[0]} ended with {done.returncode}")
    return done.stdout


def main():
    if os.geteuid() != 0:
        skip("needs root: debootstrap and chroot")
    missing = [name for name in ("dh", "lintian", "debootstrap", "dpkg-buildpackage") if not shutil.which(name)]
    if missing:
        skip(f"needs {', '.join(missing)} (apt install debhelper lintian debootstrap dpkg-dev)")
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rdmalloc-package.") as name:
        folder = pathlib.Path(name)
        run("git", "clone", "-q", "--no-hardlinks", str(REPOSITORY), "rdmalloc", folder=folder)
        cached = {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_BASEDIR": name, "CCACHE_NOHASHDIR": "1"} \
            if shutil.which("ccache") else {}
        run("unshare", "--net", "dpkg-buildpackage", "-us", "-uc", "-b", folder=folder / "rdmalloc",
            DEB_BUILD_OPTIONS="parallel=2 noautodbgsym", **cached)
        changes = [str(path) for path in folder.glob("*.changes")]
        told = run("lintian", "--allow-root", "--fail-on", "error,warning", *changes)
        if told.strip():
            print(told)
        packages = folder / "packages"
        packages.mkdir()
        for path in folder.glob("*.deb"):
            shutil.move(path, packages)
        told = run(str(REPOSITORY / "tools" / "bare-debian.sh"), "--copy", str(packages), "tests/package/use.sh")
        print(told[-3000:])
        if not told.rstrip().endswith("used"):
            sys.exit("FAILED: the packages were not used to the end")


main()
