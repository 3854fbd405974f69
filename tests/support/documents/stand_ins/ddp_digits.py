"""What pages show of examples/ddp_digits.py, without torch, whose import takes each worker two seconds.

It takes the same options, saves an epoch where the example does, resumes after it, and prints the same lines.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

EPOCH_S = 1.0
"""Long enough for a page to look at the job and to harm it, before --epochs are over."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--checkpoint")
    given = parser.parse_args()
    is_first = os.environ["RANK"] == "0"
    saved = Path(given.checkpoint, "digits.pt") if given.checkpoint else None
    first_epoch = int(saved.read_text()) if saved and saved.exists() else 0
    if first_epoch and is_first:
        print(f"resumed after epoch {first_epoch} from {saved}", flush=True)
    for epoch in range(first_epoch + 1, given.epochs + 1):
        if saved:
            time.sleep(EPOCH_S)
        if is_first:
            print(f"epoch {epoch} of {given.epochs}: loss {1 / epoch:.3f}", flush=True)
            if saved:
                saved.parent.mkdir(exist_ok=True)
                new = saved.with_suffix(".new")
                new.write_text(str(epoch))
                new.rename(saved)
    if is_first:
        print("test accuracy 0.980, 1000 samples/s", flush=True)


if __name__ == "__main__":
    main()
