"""Prints how many devices torch counts under each value of CUDA_VISIBLE_DEVICES in a JSON list; null is unset.

torch is imported once; each value is tried in a fork of its own, since CUDA reads the variable once per process.
"""

import json
import os
import sys

import torch

NAME = "CUDA_VISIBLE_DEVICES"
UNKNOWN = 255


def count(value):
    """Return torch's count in a fork; None if that fails."""
    pid = os.fork()
    if pid == 0:
        number = UNKNOWN
        try:
            os.environ.pop(NAME, None)
            if value is not None:
                os.environ[NAME] = value
            number = torch.cuda.device_count()
        finally:
            os._exit(min(number, UNKNOWN))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if 0 <= code < UNKNOWN else None


if __name__ == "__main__":
    print(json.dumps([count(value) for value in json.loads(sys.argv[1])]))
