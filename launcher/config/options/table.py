"""Every option of the command, in one table.

The parser, the help, the reference page, the variables of an option and the suggestions for a misspelt
flag are all derived from `TABLE`, so they cannot disagree. Names, spellings and defaults are torchrun 2.13's where it
has the option.
"""

from __future__ import annotations

from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    OptionKind = Literal["text", "flag", "count", "seconds", "ask"]
    OptionState = Literal["works", "no effect"]
    OptionSource = Literal["torchrun", "torchrun without variable", "ours"]


class Option(NamedTuple):
    """One row. `default` is the value of an option that is not set, as a user would write it ("" for none).

    `kind`: how the value is written: text; a flag (in a variable 0 or 1); a count (a whole number); seconds; or
    "ask" for -h and --version, which have no variable. `state`: "no effect" options are accepted with a remark.
    `source`: the origin of the name; torchrun's come first when a prefix is completed, and have a PET_ variable, except
    two that torchrun reads from none. `last_variable`: one more, outside both families, that is read last. `alias`: its
    name in earlier versions, which no help shows: of the two flags the last one counts, as for any flag that is
    repeated; of the two variables the one of `name`.
    """

    name: str
    kind: OptionKind
    metavar: str
    default: str
    help: str
    group: str
    state: OptionState = "works"
    short: str = ""
    source: OptionSource = "torchrun"
    last_variable: str = ""
    alias: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings: the short form, with dashes, with underscores."""
        underscored = "--" + self.name.replace("-", "_")
        return tuple(dict.fromkeys(filter(None, (self.short, self.flag, underscored))))

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that set it and are shown, highest precedence first."""
        if self.kind == "ask":
            return ()
        suffix = self.name.replace("-", "_").upper()
        pet = f"PET_{suffix}" if self.source == "torchrun" else ""
        return tuple(filter(None, (f"LAUNCHER_{suffix}", pet, self.last_variable)))

    @property
    def all_variables(self) -> tuple[str, ...]:
        """The same, followed by that of the alias."""
        alias = (f"LAUNCHER_{self.alias.replace('-', '_').upper()}",) if self.alias else ()
        return (*self.variables, *alias)

    @property
    def takes_value(self) -> bool:
        return self.kind not in ("flag", "ask")


# The groups of the help: the NAME of `-h NAME`, and its heading. Each fits a screen.
GROUPS = {
    "size": "How many workers, and the grid they form",
    "devices": "Which devices workers are for, and who sees what",
    "placement": "Which node gets which ranks",
    "locality": "Where this node stands in the network",
    "script": "What a worker runs",
    "restarts": "When something fails or stops",
    "health": "Whether a node is fit to join, and its workers live",
    "leaving": "When a node is told to go, or cannot be reached",
    "output": "Where the output goes",
    "logs": "More about logs, and events",
    "meeting": "How the nodes of a job find each other",
    "waiting": "How long nodes are waited for",
    "static": "Nodes that are numbered beforehand, with --rdzv-backend static",
    "addresses": "Addresses and ports",
    "legacy": "For the sake of older command lines",
    "help": "Help",
}


# fmt: off
TABLE: tuple[Option, ...] = (
    Option("nnodes", "text", "N|MIN:MAX", "1:1", "Nodes with ranks; more are spares. MIN: is open above, as is "
           "a job with a --mesh that meets others.", "size"),
    Option("nproc-per-node", "text", "N|auto|gpu|cpu|xpu|...", "auto if accelerators are found, else 1",
           "Workers on this node.", "size"),
    Option("mesh", "text", "AXIS=SIZE,...", "dp=*", "The grid of ranks, outermost axis first, e.g. pp=4,dp=*,tp=8; "
           "one axis may be * and takes what is there.", "size", source="ours"),
    Option("elastic", "text", "MIN:MAX", "1:", "Sizes the axis with * may take; N, MIN: and :MAX will do.",
           "size", source="ours"),
    Option("dp-min", "count", "N", "1", "The same as --elastic N: for the axis with *.", "size", source="ours"),
    Option("dp-max", "count", "N", "none", "The same as --elastic :N for the axis with *.", "size", source="ours"),

    Option("devices", "text", "KIND[:COUNT]|NAME:COUNT", "what is found", "The devices workers are for: nvidia, amd, "
           "intel, tpu (also tpu:TYPE, as in tpu:v5e-16), cpu, or the NAME of a plug-in.", "devices", source="ours"),
    Option("visible-env", "text", "VARIABLE", "that of the kind", "What makes devices visible to a worker; with it "
           "--devices NAME:COUNT is believed.", "devices", source="ours"),
    Option("devices-per-worker", "text", "N|all", "1; all for JAX on TPUs", "Devices a worker gets for itself.",
           "devices", source="ours"),
    Option("device-binding", "text", "local-rank|visible", "local-rank", "Workers pick their device by LOCAL_RANK, or "
           "see only their own.", "devices", source="ours"),
    Option("virtual-local-rank", "flag", "", "0", "Every worker sees LOCAL_RANK 0 and its own GPU as device 0.",
           "devices"),
    Option("numa-binding", "text", "node|socket|exclusive|core-complex", "", "Keep every worker to CPUs near its "
           "device.", "devices", source="torchrun without variable"),

    Option("traffic", "text", "AXIS=WEIGHT[:KIND],...", "tp=100,cp=30,ep=20,dp=10,pp=3", "Bytes a rank sends along an "
           "axis, in proportion; A+B is one group over both. KIND is ring, line or all.", "placement", source="ours"),
    Option("level-costs", "text", "LEVEL=COST,...", "host=1, then 2, 4, 8, ...",
           "Cost of leaving a domain of a level.", "placement", source="ours", alias="tolls"),
    Option("unit", "count", "N", "inner axes that fit a node", "Consecutive ranks that stay on one node.",
           "placement", source="ours"),
    Option("within", "text", "AXIS=LEVEL,...", "", "Every group of the axis stays inside one domain of the level; "
           "one machine knows only host.", "placement", source="ours"),
    Option("whole", "text", "LEVEL[:HOSTS]", "", "Domains of the level are used with all their HOSTS nodes or not at "
           "all; one machine knows none.", "placement", source="ours"),
    Option("move-cost", "text", "COST", "5 % of the plan for all", "Cost of moving a rank to another node.",
           "placement", source="ours"),

    Option("locality", "text", "LEVEL=DOMAIN,...", "", "This node's place, outermost level first: "
           "zone=a,spine=s1,leaf=l3.", "locality", source="ours"),
    Option("locality-file", "text", "FILE", "", "Places of all nodes: lines of a host and LEVEL=DOMAIN,...; * is any "
           "other host.", "locality", source="ours"),
    Option("locality-command", "text", "COMMAND", "", "A command of the shell that prints this node's place within "
           "10 s.", "locality", source="ours"),
    Option("locality-sources", "text", "auto|none|NAME,...", "auto", "Who else is asked: those of which there is a "
           "sign, nobody, or these, the most trusted first.", "locality", source="ours"),

    Option("module", "flag", "", "0", "SCRIPT is a module, run as by python -m.", "script", short="-m"),
    Option("no-python", "flag", "", "0", "SCRIPT is a program, run without Python.", "script"),
    Option("run-path", "flag", "", "0", "Run SCRIPT by runpy.run_path. Wins over --no-python.", "script"),
    Option("role", "text", "NAME", "default", "Name of the workers, seen in ROLE_NAME and in prefixes.", "script"),
    Option("framework", "text", "auto|torch|jax|xla|NAME", "auto", "Whose variables the workers get beside torchrun's; "
           "auto: jax where only JAX can be imported.", "script", source="ours"),
    Option("preload", "text", "MODULE,...", "", "Import these once; workers are forked with them in memory.", "script",
           source="ours"),
    Option("standby", "count", "SETS", "0", "Further sets of workers that wait, forked, for a restart.", "script",
           source="ours"),

    Option("max-restarts", "count", "N", "0", "How often the workers are restarted before the job fails.", "restarts"),
    Option("restart-window", "seconds", "SECONDS", "none", "Only failures this recent count.", "restarts",
           source="ours"),
    Option("min-round-time", "seconds", "SECONDS", "5", "A round that ends sooner made no progress: after several, "
           "the next one waits a little, and then the job fails.", "restarts", source="ours"),
    Option("attempt", "count", "N", "none", "Which attempt at the run this is, where a scheduler counts them; agents "
           "of an earlier one end.", "restarts", source="ours", last_variable="SLURM_RESTART_COUNT"),
    Option("shutdown-timeout", "seconds", "SECONDS", "30", "From the stop signal to the kill.", "restarts",
           last_variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
    Option("monitor-interval", "seconds", "SECONDS", "0.1", "No effect: nothing here polls.", "restarts",
           state="no effect"),

    Option("signals-to-handle", "text", "NAME,...", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
           "Signals that are passed on to the workers and make this node leave.", "leaving"),
    Option("preemption-signal", "text", "NAME", "", "A further signal to leave on; workers get SIGTERM.", "leaving",
           source="ours"),
    Option("preemption-file", "text", "FILE", "", "Leave within a second once this file is there.", "leaving",
           source="ours"),
    Option("lease-ttl", "seconds", "SECONDS", "5; none on one machine", "A node cut off for so long kills its "
           "workers.", "leaving", source="ours"),
    Option("store-outage", "text", "continue|stop", "continue", "Whether workers go on when no node reaches the store.",
           "leaving", source="ours"),
    Option("presence-proof", "text", "on|off", "on", "A node whose ports refuse is lost at once, not by its lease.",
           "leaving", source="ours"),

    Option("health-check", "text", "COMMAND", "", "A command of the shell that must succeed before this node joins; "
           "if it fails it is run again later.", "health", source="ours"),
    Option("health-timeout", "seconds", "SECONDS", "60", "The longest that such a check may take.", "health",
           source="ours"),
    Option("heartbeat-timeout", "seconds", "SECONDS", "none", "A worker that has called launcher.worker.heartbeat() "
           "and is silent for so long has failed.", "health", source="ours"),

    Option("log-dir", "text", "DIR", "a temporary directory", "Base directory of the log files; each run makes its own "
           "below it.", "output"),
    Option("redirects", "text", "0-3|RANK:0-3,...", "0", "Log files instead of the console: 0 for nothing, 1 "
           "stdout, 2 stderr, 3 both.",
           "output", short="-r"),
    Option("tee", "text", "0-3|RANK:0-3,...", "0", "Log files and the console, likewise.", "output", short="-t"),
    Option("local-ranks-filter", "text", "RANK,...", "all", "Local ranks whose output the console shows.", "output"),

    Option("standalone", "flag", "", "0", "One node that meets nobody: the other options of this group, --node-rank, "
           "--master-addr and --master-port then have no effect.", "meeting"),
    Option("rdzv-backend", "text", "static|c10d|etcd", "static", "c10d: one node's agent serves the store; static: "
           "node rank 0's does; etcd (also etcd-v2): v3.", "meeting"),
    Option("rdzv-endpoint", "text", "HOST[:PORT],...", "", "The store; etcds:// in front for TLS. With static: the "
           "master.", "meeting"),
    Option("rdzv-id", "text", "ID", "random; etcd needs one", "Name of the run.", "meeting"),
    Option("rdzv-conf", "text", "KEY=VALUE,...", "", "torchrun's further settings, and user, password_file.",
           "meeting"),
    Option("rdzv-prefix", "text", "PREFIX", "meshrun", "Where the run's keys lie in the store.", "meeting",
           source="ours"),
    Option("node-name", "text", "NAME", "the host's name", "What this node is called.", "meeting", source="ours"),

    Option("target-nodes", "count", "N", "none", "At the start wait for so many nodes, though fewer would do.",
           "waiting", source="ours"),
    Option("start-timeout", "seconds", "SECONDS", "600", "The longest wait to be fit, for the store, for nodes.",
           "waiting", source="ours"),
    Option("join-grace", "seconds", "SECONDS", "30", "At the start wait so long after the last node came.", "waiting",
           source="ours"),
    Option("rejoin-timeout", "seconds", "SECONDS", "1800", "The longest wait for nodes to come back.", "waiting",
           source="ours"),
    Option("grow", "text", "never|delay|checkpoint", "delay", "When a running job restarts to use more nodes.",
           "waiting", source="ours"),
    Option("grow-delay", "seconds", "SECONDS", "300", "Quiet after the last arrival before it does.", "waiting",
           source="ours"),
    Option("on-finished", "text", "next|exit", "next", "If this run has failed before: begin anew, or end as it did.",
           "waiting", source="ours"),

    Option("node-rank", "count", "N", "0", "The number of this node, from 0.", "static"),
    Option("master-addr", "text", "ADDRESS", "--local-addr, else loopback", "MASTER_ADDR, on node rank 0.", "static"),
    Option("master-port", "count", "PORT", "29500; on one node a fresh one for every round", "MASTER_PORT.", "static"),
    Option("store-port", "count", "PORT", "MASTER_PORT + 1", "Where node rank 0 serves the store.", "static",
           source="ours"),

    Option("local-addr", "text", "ADDRESS", "that of the route to the store", "This node's address, as others reach "
           "it; loopback if alone.", "addresses"),
    Option("interface", "text", "NAME", "", "The network interface that has this node's address.", "addresses",
           source="ours"),
    Option("port-range", "text", "FIRST:LAST", "any free", "Where the agent listens for other agents.", "addresses",
           source="ours"),
    Option("worker-port-range", "text", "FIRST:LAST", "any free", "Where rank 0 listens.", "addresses", source="ours"),

    Option("duplicate-stdout-filters", "text", "TEXT,...", "", "Teed lines that hold a TEXT also go to one file, "
           "filtered_stdout.log; two commas are one inside a TEXT.", "logs"),
    Option("duplicate-stderr-filters", "text", "TEXT,...", "", "The same for stderr, in filtered_stderr.log.", "logs"),
    Option("logs-specs", "text", "NAME", "default", "A plug-in of entry point group torchrun.logs_specs says where "
           "output goes.", "logs", source="torchrun without variable"),
    Option("event-log-handler", "text", "NAME", "null", "Where events go: null, console (JSON lines on stderr), or a "
           "handler that torch knows.", "logs"),

    Option("start-method", "text", "spawn|fork|forkserver", "spawn", "No effect: a worker is a program of its own.",
           "legacy", state="no effect"),
    Option("use-env", "flag", "", "0", "No effect: LOCAL_RANK is in the environment, as under torchrun.", "legacy",
           state="no effect", source="ours"),
    Option("legacy-local-rank", "flag", "", "0", "Give SCRIPT --local-rank=N as its first argument, as python -m "
           "torch.distributed.launch does.", "legacy", source="ours"),

    Option("help", "ask", "[GROUP]", "", "This text, or the part of it that is called GROUP.", "help", short="-h"),
    Option("version", "ask", "", "", "The version of meshrun.", "help", source="ours"),
)
# fmt: on

# The options that launcher/placement/adapter/options.py parses, given the mesh and the network's levels.
PLACEMENT_OPTIONS = ("traffic", "unit", "within", "whole", "level-costs", "elastic", "dp-min", "dp-max", "move-cost")

BY_NAME = {option.name: option for option in TABLE}
BY_ALIAS = {option.alias: option for option in TABLE if option.alias}
BY_SHORT = {option.short: option for option in TABLE if option.short}
