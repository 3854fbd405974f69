"""Completion of `meshrun` for bash, zsh and fish: a script for the shell, made from the table of options.

The script holds all that it completes, so that pressing Tab starts no Python. Before the script of the job it offers
options, and after an option what its metavar lists, files or directories; after the script only files, since what
stands there is the script's own. `meshctl` has click's completion, which asks the command itself.
"""

from __future__ import annotations

from launcher.config.help import GROUPS
from launcher.config.options.readers import Option
from launcher.config.options.table import TABLE
from launcher.model.errors import UsageError, sanitize

SHELLS = ("bash", "zsh", "fish")


def render(shell: str) -> str:
    """Return the script for a shell. Raises UsageError for one that is not in SHELLS."""
    renderers = dict(zip(SHELLS, (_render_bash, _render_zsh, _render_fish), strict=True))
    if shell not in renderers:
        given = f"{sanitize(shell)} is no shell that is known here" if shell else "a shell has to be named"
        raise UsageError(f"--completion: {given}", f"--completion {'|'.join(SHELLS)}")
    return renderers[shell]()


def list_words(option: Option) -> tuple[str, ...]:
    """Return the fixed words that an option's value can be: those of its metavar in small letters, or groups."""
    if option.name == "help":
        return tuple(GROUPS)
    words = (word.partition("[")[0] for word in option.metavar.partition(",")[0].split("|"))
    return tuple(word for word in words if word.replace("-", "").isalnum() and word.islower())


def _summarize(option: Option) -> str:
    return option.help.partition(". ")[0].rstrip(".")


def _list_flags(option: Option) -> list[str]:
    return [spelling for spelling in (option.short, option.flag) if spelling]


_BASH = """\
# Completion of meshrun for bash: eval "$(meshrun --completion bash)"
_meshrun() {
    local cur=${COMP_WORDS[COMP_CWORD]} option= word i is_torn=
    COMPREPLY=()
    # bash tears words at = and :, as in --tee=3 and 1:4.
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == [=:]* ]]; then
            is_torn=1
        elif [[ -n $option || -n $is_torn ]]; then
            option= is_torn=
        elif [[ $word == -- || $word != -?* ]]; then
            compopt -o default
            return
        else
            case ${word//_/-} in
                @VALUED@) option=${word//_/-} ;;
            esac
        fi
    done
    if [[ $cur == [=:]* ]]; then
        cur= is_torn=1
    fi
    case $option in
        "")
            if [[ -n $is_torn ]]; then
                return
            elif [[ $cur == -* ]]; then
                COMPREPLY=($(compgen -W "@FLAGS@" -- "${cur//_/-}"))
            else
                compopt -o default
            fi ;;
@CASES@
    esac
}
complete -F _meshrun meshrun"""


def _render_bash() -> str:
    cases = []
    for option in TABLE:
        pattern, words = "|".join(_list_flags(option)), list_words(option)
        if words:
            cases.append(f'        {pattern}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$cur")) ;;')
        elif option.metavar in ("FILE", "DIR"):
            cases.append(f"        {pattern}) compopt -o {'dirnames' if option.metavar == 'DIR' else 'default'} ;;")
    flags = [flag for option in TABLE for flag in _list_flags(option)]
    return _fill(
        _BASH,
        VALUED="|".join(flag for option in TABLE if option.metavar for flag in _list_flags(option)),
        FLAGS=" ".join(flags),
        CASES="\n".join(cases),
    )


_ZSH = """\
#compdef meshrun
# Completion of meshrun for zsh: eval "$(meshrun --completion zsh)", or this file as _meshrun in a directory of fpath
_meshrun() {
    _arguments -s -A '-*' \\
@SPECS@
        '1:script:_files' \\
        '*:argument of the script:_files'
}
if [[ ${funcstack[1]} == _meshrun ]]; then
    _meshrun "$@"
else
    compdef _meshrun meshrun
fi"""


def _render_zsh() -> str:
    specs = []
    for option in TABLE:
        about = "[" + "".join("\\" + letter if letter in "\\[]:" else letter for letter in _summarize(option)) + "]"
        value = ""
        if option.metavar:
            action = {"FILE": "_files", "DIR": "_path_files -/"}.get(option.metavar, " ")
            if words := list_words(option):
                action = f"({' '.join(words)})"
            name = option.metavar.replace("\\", "\\\\").replace(":", "\\:")
            value = f"{':' * (1 + (option.name == 'help'))}{name}:{action}"
        for flag in _list_flags(option):
            assigned = ("=" if flag == option.flag else "+") * bool(option.metavar)
            specs.append(f"        {_quote(f'*{flag}{assigned}{about}{value}')} \\")
    return _fill(_ZSH, SPECS="\n".join(specs))


_FISH = """\
# Completion of meshrun for fish: meshrun --completion fish | source
function __meshrun_before_script
    set -l valued @VALUED@
    set -l skip 0
    for word in (commandline -opc)[2..-1]
        if test $skip = 1
            set skip 0
        else if contains -- (string replace -a _ - -- $word) $valued
            set skip 1
        else if not string match -q -- '-?*' $word; or test "$word" = --
            return 1
        end
    end
end
complete -c meshrun -e
@LINES@"""


def _render_fish() -> str:
    lines = []
    for option in TABLE:
        short = f" -s {option.short[1:]}" if option.short else ""
        value = ""
        if option.metavar:
            value = " -r -F" if option.metavar in ("FILE", "DIR") else " -x"
            value += f" -a {_quote(' '.join(words))}" if (words := list_words(option)) else ""
        about = _quote(_summarize(option))
        lines.append(f"complete -c meshrun -n __meshrun_before_script{short} -l {option.name}{value} -d {about}")
    valued = (flag for option in TABLE if option.metavar for flag in _list_flags(option))
    return _fill(_FISH, VALUED=" ".join(valued), LINES="\n".join(lines))


def _fill(template: str, **parts: str) -> str:
    for name, part in parts.items():
        template = template.replace(f"@{name}@", part)
    return template


def _quote(text: str) -> str:
    """Return the text as one word of a shell, in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"
