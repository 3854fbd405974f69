"""Completion of `meshrun` for bash, zsh and fish: a few lines for the shell, made from the table of options.

They hold all that is completed, so that pressing Tab starts no Python: the options, the fixed words that their values
can be, and files. What stands where is not looked at, but by fish, which knows the words of each option. `meshctl` has
click's completion, which asks the command itself.
"""

from __future__ import annotations

from launcher.config.help import GROUPS
from launcher.config.options.readers import Option
from launcher.config.options.table import list_options
from launcher.model.errors import UsageError, sanitize

SHELLS = ("bash", "zsh", "fish")
_BASH = 'complete -o filenames -f -W "{words}" meshrun'
_ZSH = "_meshrun() {{ compset -P '*='; compadd -- {words}; _files; }}\ncompdef _meshrun meshrun"


def render(shell: str) -> str:
    """Return the lines for a shell. Raises UsageError for one that is not in SHELLS."""
    if shell not in SHELLS:
        given = f"unknown shell {sanitize(shell)}" if shell else "a shell is missing"
        raise UsageError(f"--completion: {given}", f"use --completion {'|'.join(SHELLS)}")
    if shell == "fish":
        return "\n".join(map(_render_fish, list_options()))
    words = [word for option in list_options() for word in (option.short, option.flag, *list_words(option)) if word]
    return (_BASH if shell == "bash" else _ZSH).format(words=" ".join(dict.fromkeys(words)))


def list_words(option: Option) -> tuple[str, ...]:
    """Return the fixed words that an option's value can be: those of its metavar in small letters, or groups."""
    if option.name == "help":
        return tuple(GROUPS)
    words = (word.partition("[")[0] for word in option.metavar.partition(",")[0].split("|"))
    return tuple(word for word in words if word.replace("-", "").isalnum() and word.islower())


def _render_fish(option: Option) -> str:
    short = f" -s {option.short[1:]}" if option.short else ""
    words = list_words(option)
    value = f" -x -a '{' '.join(words)}'" if words else " -r" if option.metavar else ""
    about = option.help.partition(", e.g.")[0].partition(". ")[0].rstrip(".").replace("'", "\\'")
    return f"complete -c meshrun{short} -l {option.name}{value} -d '{about}'"
