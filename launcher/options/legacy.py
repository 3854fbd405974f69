"""What is accepted because older command lines have it, and changes little or nothing here.

`python -m torch.distributed.launch`, from before torchrun, gives every script its local rank as an argument, unless
--use-env says that the script reads LOCAL_RANK; here that is the rule, and --legacy-local-rank the exception. The way
to start a worker means something for functions only. torchrun's agent also reads variables that no option of its
names. Whatever has no effect is said in one line and never refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.options import Value
from launcher.options.reading import make_choice_parser, parse_flag

# Variable -> the value that asks for something ("": any), and why nothing comes of it.
_UNREAD_VARIABLES: Mapping[str, tuple[str, str]] = {
    "TORCHELASTIC_HEALTH_CHECK_PORT": ("", "nothing listens there, nor does anything of the public torch"),
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": ("", "a worker that sleeps in the kernel is not looked for"),
    "TORCH_ELASTIC_WORKER_IDENTICAL": ("1", "ranks come with the round, nodes exchange nothing for them"),
}


def needs_local_rank(values: Mapping[str, Value], notes: list[str]) -> bool:
    """Whether the script gets --local-rank=N as its first argument. Raises UsageError."""
    start_method, use_env, wanted = values["start-method"], values["use-env"], values["legacy-local-rank"]
    make_choice_parser("spawn", "fork", "forkserver")(start_method)
    if not start_method.is_default:
        notes.append(f"{start_method} has no effect: workers are programs, each is started afresh")
    if not parse_flag(wanted):
        if parse_flag(use_env):
            notes.append(f"{use_env} has no effect: LOCAL_RANK is always in the environment")
        return False
    if parse_flag(use_env):
        raise UsageError(f"{use_env} and {wanted} contradict each other", "give one of them")
    if parse_flag(values["no-python"]) and not parse_flag(values["run-path"]):
        raise UsageError(f"{values['no-python']} and {wanted} exclude each other", "a program reads LOCAL_RANK")
    return True


def list_unread_variables(environ: Mapping[str, str]) -> list[str]:
    """A remark for every variable that torchrun's agent would act on and this one does not."""
    return [
        f"{name}={environ[name]} has no effect: {why}"
        for name, (value, why) in _UNREAD_VARIABLES.items()
        if environ.get(name, "") and value in ("", environ[name])
    ]
