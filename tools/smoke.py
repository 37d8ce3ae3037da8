"""Try an installed Tidelog: VERSION is the one expected. Run it with the interpreter to be tried.

It needs the base installation and no server: `tidelog --version`, `init` and `check`, an engine,
and the files that the package must bring.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

FILES = (
    "py.typed",
    "config/tidelog.schema.json",
    "app/web/static/page.css",
    "app/web/static/failure-modes.md",
)
URL = "postgresql://tidelog:${SMOKE_PASSWORD}@127.0.0.1:1/shop"  # nobody listens there


def tidelog(*arguments: str, folder: str, exits: int = 0) -> str:
    """Return what the command printed. Its exit code must be `exits`."""
    done = subprocess.run(  # noqa: S603 - our own arguments
        [sys.executable, "-m", "tidelog", *arguments],
        cwd=folder, env=os.environ | {"SMOKE_PASSWORD": "s3cret"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != exits or "Traceback" in done.stdout or "s3cret" in done.stdout:
        sys.exit(f"tidelog {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def main(version: str) -> None:
    """Exit with a sentence about the first thing that is wrong."""
    import tidelog as package

    missing = [name for name in FILES if not files("tidelog").joinpath(name).is_file()]
    missing += [name for name in ("pyspark_tidelog",) if find_spec(name) is None]
    if missing:
        sys.exit(f"not in the package: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        if (shown := tidelog("--version", folder=folder).strip()) != f"tidelog {version}":
            sys.exit(f"tidelog --version: {shown}")
        # Exit code 2: the server can't be reached, and the file is there.
        tidelog("init", "--url", URL, "--table", "public.*", "--output", "files=lake",
                folder=folder, exits=2)  # fmt: skip
        if "127.0.0.1" not in (said := tidelog("check", "tidelog.yaml", folder=folder, exits=2)):
            sys.exit(f"tidelog check:\n{said}")
        os.environ["SMOKE_PASSWORD"] = "s3cret"  # noqa: S105 - of no server
        engine = package.AsyncEngine(str(Path(folder, "tidelog.yaml")), consumer=print)
        engine.stop()
    print(f"tidelog {version}: {Path(package.__file__).parent} on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main(sys.argv[1])
