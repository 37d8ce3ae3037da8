"""Fetch Debian's newest MySQL server into a directory, with the libraries it needs.

    python tools/debian_mysql.py DIRECTORY
    make test-mysql MYSQLD=DIRECTORY/usr/sbin/mysqld-here

It runs on older Debians as well, since it brings its own C library. Started by hand it needs
``--secure-file-priv=``: the default directory is not there. Nothing is installed. Packages
are those of Debian's development release, checked against its list by SHA-256; they need `dpkg-deb`.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import re
import subprocess
import tempfile
import urllib.request
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
PACKAGE = "mysql-server-core"
LINKER = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
_FIELD = re.compile(r"^(Package|Depends|Pre-Depends|Provides|Filename|SHA256|Version): (.*)$", re.M)

Package = dict[str, str]


def fetched(path: str) -> bytes:
    with urllib.request.urlopen(f"{MIRROR}/{path}", timeout=120) as answer:  # noqa: S310
        content: bytes = answer.read()
    return content


def packages(release: str) -> dict[str, Package]:
    """By name, and by what they provide."""
    listed = lzma.decompress(fetched(f"dists/{release}/main/binary-amd64/Packages.xz")).decode()
    found: dict[str, Package] = {}
    provided: dict[str, Package] = {}
    for stanza in listed.split("\n\n"):
        package = dict(_FIELD.findall(stanza))
        if "Package" in package:
            found[package["Package"]] = package
            provided |= dict.fromkeys(_names(package.get("Provides", "")), package)
    return provided | found


def needed(known: dict[str, Package]) -> list[Package]:
    """The server and all libraries below it."""
    wanted, found = [PACKAGE], dict[str, Package]()
    while wanted:
        package = known.get(wanted.pop())
        if package is None or package["Package"] in found:
            continue
        found[package["Package"]] = package
        for kind in ("Depends", "Pre-Depends"):
            names = _names(package.get(kind, ""))
            wanted += [name for name in names if name.startswith(("lib", "zlib", "mysql"))]
    return list(found.values())


def _names(listed: str) -> list[str]:
    """The first of each alternative, without versions and architectures."""
    first = (each.split("|")[0].strip() for each in listed.split(","))
    return [re.split(r"[ (:]", name)[0] for name in first if name]


def unpack(package: Package, directory: Path) -> None:
    content = fetched(package["Filename"])
    if hashlib.sha256(content).hexdigest() != package["SHA256"]:
        raise SystemExit(f"{package['Filename']} is not what Debian's list says")
    with tempfile.NamedTemporaryFile(suffix=".deb") as file:
        file.write(content)
        file.flush()
        command = ["dpkg-deb", "-x", file.name, str(directory)]
        subprocess.run(command, check=True)  # noqa: S603


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--release", default="sid", help="of Debian (default: sid)")
    given = parser.parse_args()
    root = given.directory.resolve()
    root.mkdir(parents=True, exist_ok=True)
    known = packages(given.release)
    for package in needed(known):
        unpack(package, root)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    program = root / "usr/sbin/mysqld-here"
    program.write_text(
        "#!/bin/sh\n"
        f"exec '{root / LINKER}' --library-path '{libraries}' '{root}/usr/sbin/mysqld' \"$@\"\n"
    )
    program.chmod(0o755)
    for place, _directories, _files in os.walk(root):
        Path(place).chmod(0o755)  # the server runs as an unprivileged user
    print(f"MySQL {known[PACKAGE]['Version']}: {program}")


if __name__ == "__main__":
    main()
