"""Run the steps of deploy/Containerfile in a Debian root, where no container engine is: DIR STAGE….

Needs root, mmdebstrap and a wheel in dist/. Prints each stage's size, unpacked and packed, and its largest packages,
and captures a table of each kind of source with it, as the image's user with a read-only root. DIR is created, and kept.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tidelog.demo.servers.mysql import MariaDbServer, MySqlServer
from tidelog.demo.servers.postgres import PostgresServer

ROOT = Path(__file__).parents[1]
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
# As Debian's slim images: no manuals, no translations, no caches of apt.
SLIM = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
APT = """\
APT::Keep-Downloaded-Packages "false";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""
# And no usrmerge, with its Perl.
SLIM += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--include=usr-is-merged"]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CONFIG = """\
source: {{kind: {kind}, url: "{url}", tables: ["*.orders"]}}
log: {{path: /var/lib/tidelog/log}}
state: {{url: "sqlite:////var/lib/tidelog/state.db"}}
"""


def steps() -> Iterator[tuple[str, str, str]]:
    """Yield stage, instruction and arguments, line by line."""
    stage = ""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        instruction, _, arguments = line.strip().partition(" ")
        if instruction == "FROM":
            stage = arguments.rpartition(" AS ")[2]
        if instruction:
            yield stage, instruction, arguments


def run(*command: str | Path) -> None:
    """Run a command; end with its line if it fails."""
    if subprocess.run(list(map(str, command)), check=False).returncode != 0:  # noqa: S603
        sys.exit(f"failed: {' '.join(map(str, command))}")


def build(root: Path, wanted: str) -> dict[str, str]:
    """Run a stage's steps in `root`; return the image's environment."""
    environment = {"PATH": os.defpath + ":/usr/sbin:/sbin", "DEBIAN_FRONTEND": "noninteractive"}
    for stage, instruction, arguments in steps():
        if stage != wanted or instruction not in {"RUN", "COPY", "ENV"}:
            continue
        if instruction == "ENV":
            environment |= dict(each.split("=", 1) for each in shlex.split(arguments))
        elif instruction == "COPY":
            *sources, target = arguments.split()
            for source in sources:
                shutil.copy(ROOT / source, root / target.strip("/"))
        else:
            # The packages' indexes are reached as from this machine.
            for name in ("etc/resolv.conf", "etc/hosts"):
                shutil.copy(f"/{name}", root / name)
            shutil.copy(CERTIFICATES, root / "tmp" / "certificates")
            given = environment | {"PIP_CERT": "/tmp/certificates"}  # noqa: S108 - in that root
            pairs = [f"{name}={value}" for name, value in given.items()]
            alone = ["unshare", "--pid", "--fork", f"--mount-proc={root}/proc"]
            run(*alone, "chroot", root, "env", "-i", *pairs, "sh", "-ec", arguments)
            (root / "tmp" / "certificates").unlink()
    return environment


def report(root: Path, stage: str) -> None:
    """Print how large the root is."""
    run(
        "sh", "-c",
        f'echo "{stage}: $(du -smx {root} | cut -f1) MB, packed '
        f'$(tar -C {root} -c --one-file-system . | gzip | wc -c | awk \'{{print int($1/1e6)}}\') MB"; '
        f"du -sm {root}/opt/tidelog/lib/python3*/site-packages/* 2>/dev/null | sort -rn | head -12 | sed 's:/.*/::'",
    )  # fmt: skip


def try_it(root: Path, environment: dict[str, str]) -> None:
    """Capture in the root as the image's user: /tmp and its home can be written, no more."""
    with PostgresServer() as server:
        url = server.create_database("shop")
        server.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", dbname="shop")
        server.execute("INSERT INTO orders SELECT i FROM generate_series(1, 9999) i", dbname="shop")
        try_with(root, environment, "postgres", url, "public.orders")
    for flavor in (MySqlServer, MariaDbServer):
        with flavor() as other:
            url = other.create_database("shop")
            other.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", "shop")
            for i in range(99):
                other.execute("INSERT INTO orders VALUES (%s, NULL)", "shop", (i,))
            try_with(root, environment, other.flavor, url, "shop.orders")


def try_with(root: Path, environment: dict[str, str], kind: str, url: str, table: str) -> None:
    """See `try_it`; ``url``: of a database."""
    print(f"capturing from {kind}", flush=True)
    (root / "etc" / "tidelog").mkdir(exist_ok=True)
    (root / "etc" / "tidelog" / "tidelog.yaml").write_text(
        CONFIG.format(kind=kind, url=url), encoding="utf-8"
    )
    pairs = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
    inside = f"chroot --userspec=10001:10001 {root} env -i {pairs} sh -c "
    script = f"""
        mount --bind {root} {root} && mount -o remount,ro,bind {root}
        mount -t tmpfs -o mode=1777 tmp {root}/tmp
        mount -t tmpfs -o uid=10001,gid=10001,mode=700 home {root}/var/lib/tidelog
        {inside} 'cd; tidelog --version && ! touch /opt/x 2>/dev/null'
        {inside} 'cd; tidelog check /etc/tidelog/tidelog.yaml; test $? != 2'
        {inside} 'cd; tidelog status /etc/tidelog/tidelog.yaml --fail-on critical; test $? = 1'
        {inside} 'cd; tidelog capture /etc/tidelog/tidelog.yaml & capture=$!
            until tidelog status /etc/tidelog/tidelog.yaml --fail-on critical; do
                sleep 1; kill -0 $capture || exit 1; done
            tidelog dump /etc/tidelog/tidelog.yaml --table {table} --wait || exit 1
            kill $capture; wait $capture'
    """  # noqa: S108 - in that root
    run("unshare", "--mount", "sh", "-ec", script)


def main(directory: Path, stages: list[str]) -> None:
    """Build the stages, one over the other."""
    root = directory / "root"
    directory.mkdir(parents=True)
    run("mmdebstrap", "--variant=minbase", *SLIM, "bookworm", root)
    (root / "etc/apt/apt.conf.d/docker-clean").write_text(APT, encoding="utf-8")
    report(root, "base")
    environment: dict[str, str] = {}
    for stage in stages:
        environment |= build(root, stage)
        report(root, stage)
        try_it(root, environment)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["capture", "spark"])
