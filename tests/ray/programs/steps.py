"""A worker that says where it is and what it was given, and then runs until a file tells it how to end.

steps.py DIRECTORY: writes DIRECTORY/ROUND-RANK.json, and ends with the number in DIRECTORY/exit, once that is there;
DIRECTORY/exit-RANK is for one rank. With DIRECTORY/deaf it ignores SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

directory = Path(sys.argv[1])
if (directory / "deaf").exists():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank, number = os.environ["RANK"], os.environ["LAUNCHER_ROUND"]
facts = {"rank": int(rank), "world": int(os.environ["WORLD_SIZE"]), "pid": os.getpid(), "environ": dict(os.environ)}
part = directory / f"{number}-{rank}.part"
part.write_text(json.dumps(facts))
part.rename(directory / f"{number}-{rank}.json")
print(f"rank {rank} is in round {number}", flush=True)
while True:
    for file in (directory / f"exit-{rank}", directory / "exit"):
        if file.exists():
            sys.exit(int(file.read_text()))
    time.sleep(0.05)
