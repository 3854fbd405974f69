"""An independent client of etcd that says what it sees: the package etcd3, in an environment of its own.

The script runs under that environment's Python, which has nothing of ours. It takes one request a line on standard
input, [word, argument, ...] in JSON, and answers each with one line; bytes travel as text, one character for each
byte. `Witness` is the test's end of it. The package wants a protobuf from before 2022, hence the environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

INSTALLED = Path(__file__).parents[3] / ".witness" / "bin" / "python"


def to_text(data: bytes) -> str:
    return data.decode("latin-1")


def to_bytes(text: str) -> bytes:
    return text.encode("latin-1")


class Witness:
    """A process with an etcd3 client. `ask` waits for the answer; what goes wrong there is raised here."""

    def __init__(self, endpoint: str, *, user: str = "", password: str = "") -> None:
        assert INSTALLED.exists(), "make .witness/installed installs it"
        self.process = subprocess.Popen(
            [INSTALLED, "-I", __file__, endpoint, user],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "WITNESS_PASSWORD": password},
            text=True,
        )
        assert self.ask("hello") == "hello"

    def ask(self, word: str, *arguments: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([word, *arguments]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise AssertionError(f"etcd3: {answer['error']}")
        return answer["answer"]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> None:
    import os

    import etcd3  # type: ignore[import-not-found]

    host, _, port = sys.argv[1].rpartition(":")
    login = {"user": sys.argv[2], "password": os.environ["WITNESS_PASSWORD"]} if sys.argv[2] else {}
    client = etcd3.client(host=host, port=int(port), timeout=20, **login)
    client.call_credentials = None  # grpc refuses to send these without TLS; the token goes along as metadata too
    client.watcher._credentials = None
    watches: dict[int, Any] = {}

    def item(kv: Any) -> list[Any]:
        return [to_text(kv.key), to_text(kv.value), kv.create_revision, kv.mod_revision, kv.version, kv.lease]

    def act(word: str, *arguments: Any) -> Any:
        if word == "hello":
            return word
        if word == "items":
            return [item(kv) for kv in client.get_prefix_response(to_bytes(arguments[0])).kvs]
        if word == "put":
            key, value, lease = arguments
            return client.put(to_bytes(key), to_bytes(value), lease=lease).header.revision
        if word == "delete":
            return client.delete(to_bytes(arguments[0]))
        if word == "delete prefix":
            return client.delete_prefix(to_bytes(arguments[0])).deleted
        if word == "swap":  # if the first key has this mod revision, put it and delete the second, else read it
            key, revision, value, other = arguments
            words = client.transactions
            done, _ = client.transaction(
                compare=[words.mod(to_bytes(key)) == revision],
                success=[words.put(to_bytes(key), to_bytes(value)), words.delete(to_bytes(other))],
                failure=[words.get(to_bytes(key))],
            )
            return done
        if word == "grant":
            lease = client.lease(arguments[0])
            return [lease.id, lease.ttl]
        if word == "lease":
            info = client.get_lease_info(arguments[0])
            return [info.grantedTTL, [to_text(key) for key in info.keys]]
        if word == "keep alive":
            return next(iter(client.refresh_lease(arguments[0]))).TTL
        if word == "revoke":
            client.revoke_lease(arguments[0])
            return None
        if word == "watch":
            prefix, start_revision, number = arguments
            watches[number] = client.watch_prefix(to_bytes(prefix), start_revision=start_revision)
            return None
        if word == "events":
            number, count = arguments
            told = [next(watches[number][0]) for _ in range(count)]
            watches.pop(number)[1]()
            return [[type(event).__name__, *item(event._event.kv)] for event in told]
        raise ValueError(word)

    for line in sys.stdin:
        try:
            answer = {"answer": act(*json.loads(line))}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
