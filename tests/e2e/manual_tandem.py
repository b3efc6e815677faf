#!/usr/bin/env python3
"""`tandem`, as the blocks of the manual run it.

In the manual `tandem serve` keeps a terminal of its own. Here it starts the server in the
background, in place of the one before, on TEST_PORT, and returns when the server listens. All other
verbs run unchanged. TEST_BINARY is the program, TEST_DIR keeps the server's pid and log.
"""

import os
import pathlib
import select
import signal
import subprocess
import sys

BINARY = os.environ["TEST_BINARY"]
FOLDER = pathlib.Path(os.environ["TEST_DIR"])
PID_FILE = FOLDER / "server.pid"


def stop_server():
    if not PID_FILE.exists():
        return
    pid = int(PID_FILE.read_text())
    PID_FILE.unlink()
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    os.kill(pid, signal.SIGTERM)
    select.select([ended], [], [])


def start_server(words):
    # The server keeps both ends, so that it can write after this program has ended.
    ready, written = os.pipe()
    log = FOLDER / "server.log"
    with open(log, "ab") as errors:
        server = subprocess.Popen(
            [BINARY, *words, "--port", os.environ["TEST_PORT"]], stdin=subprocess.DEVNULL,
            stdout=written, stderr=errors, pass_fds=[ready], start_new_session=True)
    os.close(written)
    PID_FILE.write_text(str(server.pid))
    ended = os.pidfd_open(server.pid)
    if ready in select.select([ready, ended], [], [])[0]:
        return 0
    PID_FILE.unlink()
    sys.stderr.write(log.read_text()[-2000:])
    return server.wait()


def main():
    words = sys.argv[1:]
    if words == ["--stop-server"]:
        stop_server()
    elif words[:1] != ["serve"] or {"--help", "--check-config"} & set(words):
        os.execv(BINARY, [BINARY, *words])
    else:
        stop_server()
        sys.exit(start_server(words))


if __name__ == "__main__":
    main()
