"""Every option of the command, in one table, and every setting that has a variable but no flag.

A row defines one option: the origin of its name, how it is written and read, its default, its help, and the section and
field of the Config that it sets. The parser, the help, the reference page, the variables of an option and the
suggestions for a misspelt flag are derived from `TABLE`, so they cannot disagree. Options of an extension are rows of
its own (launcher/extensions), imported where one is set, or all are shown. Names, spellings and defaults are
torchrun 2.13's where it has the option.

`SETTINGS`: what hardly anyone changes, read from variables alone; doctor and the reference page show it, no help does.
"""

from __future__ import annotations

from functools import partial

from launcher import extensions
from launcher.config.options import readers
from launcher.config.options.readers import Option, make_ignored, make_optional

# fmt: off
TABLE: tuple[Option, ...] = (
    # source, name, group, metavar, reader, default, help; what is not derived from these
    Option("torchrun", "nnodes", "size", "N|MIN:MAX", readers.parse_node_range, "1:1",
           "Number of nodes, or a range MIN:MAX; MIN: means no maximum. Extra nodes become spares.", field="nodes_min",
           section="placement"),
    Option("torchrun", "nproc-per-node", "size", "N|auto|gpu|cpu|xpu|...", make_optional(readers.parse_worker_count),
           "auto if accelerators are found, else 1", "Number of workers on this node.", field="worker_count",
           section="devices"),
    Option("ours", "mesh", "size", "AXIS=SIZE,...", make_optional(readers.parse_mesh), "dp=*",
           "Grid of ranks, outermost axis first, such as pp=4,dp=*,tp=8. One axis may be *, which grows to use all "
           "workers.", section="placement"),
    Option("ours", "elastic", "size", "MIN:MAX", readers.parse_text, "1:",
           "Allowed sizes of the * axis of --mesh: N, MIN:MAX, MIN: or :MAX.", section="placement.texts"),
    Option("ours", "devices", "devices", "KIND[:COUNT]|NAME:COUNT", make_optional(readers.parse_devices),
           "those detected", "Devices of the workers. KIND is nvidia, amd, intel, tpu (or tpu:TYPE, such as "
           "tpu:v5e-16), cpu, or the NAME of a plug-in.", field="request"),
    Option("ours", "visible-env", "devices", "VARIABLE", readers.parse_variable_name, "depends on the kind",
           "Environment variable that selects a worker's devices, such as CUDA_VISIBLE_DEVICES. Required with "
           "--devices NAME:COUNT.", field=""),
    Option("ours", "devices-per-worker", "devices", "N|all", make_optional(readers.parse_devices_per_worker),
           "1; all for JAX on TPUs", "Number of devices per worker."),
    Option("ours", "device-binding", "devices", "local-rank|visible", readers.parse_choice, "local-rank",
           "How a worker finds its devices: by LOCAL_RANK, or because no others are visible.", section="workers"),
    Option("torchrun", "virtual-local-rank", "devices", "", readers.parse_flag, "0",
           "Give every worker LOCAL_RANK 0, and its own GPU as device 0.", section="workers"),
    Option("torchrun without variable", "numa-binding", "devices", "node|socket|exclusive|core-complex",
           make_optional(partial(readers.parse_choice, hint="leave it out to bind nothing")), "",
           "Bind each worker to CPUs near its device.", section="workers"),

    Option("ours", "traffic", "placement", "AXIS=WEIGHT[:KIND],...", readers.parse_text,
           "tp=100,cp=30,ep=20,dp=10,pp=3",
           "Relative traffic of a rank along each axis; A+B is one group over two axes. KIND is ring, line or all.",
           section="placement.texts"),
    Option("ours", "level-costs", "placement", "LEVEL=COST,...", readers.parse_text, "host=1, then 2, 4, 8, ...",
           "Cost of a hop between two domains of a level, such as two racks.", section="placement.texts"),
    Option("ours", "rates", "placement", "LEVEL=RATE,...", readers.parse_text, "",
           "Link rates by level or domain, per direction, such as leaf=400Gbit,leaf:l3=100Gbit. Other links are "
           "assumed to be alike.", section="placement.texts"),
    Option("ours", "unit", "placement", "N", readers.parse_text, "inner axes that divide a node",
           "Number of consecutive ranks to keep on one node.", section="placement.texts"),
    Option("ours", "within", "placement", "AXIS=LEVEL,...", readers.parse_text, "",
           "Keep each group of an axis inside one domain of a level, such as tp=host. On a single node, host is the "
           "only level.", section="placement.texts"),
    Option("ours", "whole", "placement", "LEVEL:HOSTS", readers.parse_text, "",
           "Use domains of a level only as a whole, with all of their HOSTS nodes.", section="placement.texts"),

    Option("ours", "locality", "locality", "LEVEL=DOMAIN,...|@FILE", readers.parse_locality, "",
           "Network location of this node, outermost level first, such as zone=a,spine=s1,leaf=l3; or @FILE with one "
           "line per host: HOST LEVEL=DOMAIN,... (* matches any other host).", why_ignored_alone=" on one machine"),
    Option("ours", "locality-sources", "locality", "auto|none|NAME,...", readers.parse_locality_sources, "auto",
           "Sources of the network location. auto: all detected sources; NAME,...: these sources, most trusted first.",
           why_ignored_alone=" on one machine"),

    Option("torchrun", "module", "script", "", readers.parse_flag, "0",
           "Run SCRIPT as a module, like python -m.", field="launch_mode", section="workers", short="-m"),
    Option("torchrun", "no-python", "script", "", readers.parse_flag, "0",
           "Run SCRIPT as a program, without Python.", field=""),
    Option("torchrun", "run-path", "script", "", readers.parse_flag, "0",
           "Run SCRIPT with runpy.run_path. Overrides --no-python.", field=""),
    Option("torchrun", "role", "script", "NAME", readers.parse_short_text, "default",
           "Role of the workers, for ROLE_NAME and line prefixes.", section="workers"),
    Option("ours", "framework", "script", "auto|torch|jax|paddle|xla|NAME", readers.parse_printable, "auto",
           "Framework whose variables workers get besides torchrun's. auto: xla or jax on TPUs, else jax or paddle "
           "if torch is missing.", section="workers"),
    Option("ours", "preload", "script", "MODULE,...", readers.parse_modules, "",
           "Modules to import once in a process from which workers are forked.", section="workers"),
    Option("ours", "standby", "script", "SETS", readers.parse_standby, "0",
           "Number of worker sets to fork in advance for restarts.", section="workers"),

    Option("torchrun", "max-restarts", "restarts", "N", readers.parse_count, "0",
           "Number of restarts after failures; the next failure ends the job.", section="workers"),
    Option("ours", "restart-window", "restarts", "SECONDS", readers.parse_seconds, "none",
           "Time for which a failure counts against --max-restarts.", section="rendezvous.settings"),
    Option("torchrun", "shutdown-timeout", "restarts", "SECONDS", readers.parse_seconds, "30",
           "Time from the stop signal to SIGKILL.", last_variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT", section="shutdown"),
    Option("ours", "attempt", "restarts", "N", make_optional(readers.parse_count), "none",
           "Attempt number, from the scheduler. Agents of earlier attempts exit.",
           last_variable="SLURM_RESTART_COUNT", section="rendezvous"),

    Option("torchrun", "signals-to-handle", "shutdown", "NAME,...", readers.parse_signals,
           "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
           "Signals that make this node leave the job; the agent forwards them to the workers."),
    Option("ours", "preemption-signal", "shutdown", "NAME", make_optional(readers.parse_signal), "",
           "Additional signal that makes this node leave; workers get SIGTERM."),
    Option("ours", "preemption-file", "shutdown", "FILE", make_optional(readers.parse_text), "",
           "File that makes this node leave within one second after it appears."),
    Option("ours", "lease-ttl", "shutdown", "SECONDS", make_optional(readers.parse_lease_ttl), "5; none on one machine",
           "Membership lease: a node that cannot renew it in time kills its workers.", section="rendezvous"),
    Option("ours", "store-outage", "shutdown", "continue|stop", readers.parse_switch, "continue",
           "Whether workers continue while no node reaches the store.", field="continues_without_store",
           section="rendezvous.settings"),

    Option("ours", "health-check", "health", "COMMAND",
           make_optional(partial(readers.parse_command, hint="leave it out to run no check of your own")), "",
           "Shell command that must succeed before this node joins. If it fails, it runs again."),
    Option("ours", "heartbeat-timeout", "health", "SECONDS", readers.parse_timeout, "none",
           "Time without a heartbeat after which a worker that has called launcher.worker.heartbeat() counts as "
           "failed.", section="hangs"),
    Option("ours", "hang-timeout", "hangs", "SECONDS[,PHASE=SECONDS]", readers.parse_hang_timeout,
           "600,start=3600,first-step=3600", "Time without progress (output, heartbeat or collective) on any node "
           "after which a hang is reported; 0: never. PHASE is start or first-step.", field="hang_limits"),
    Option("ours", "on-hang", "hangs", "report|restart", readers.parse_choice, "report",
           "Action on a hang: only report it, or also restart (charged to --max-restarts)."),

    Option("torchrun", "log-dir", "output", "DIR", make_optional(readers.parse_text), "a temporary directory",
           "Directory for log files; each run creates a subdirectory."),
    Option("torchrun", "redirects", "output", "0-3|RANK:0-3,...", readers.parse_streams, "0",
           "Streams to write to log files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both.", short="-r"),
    Option("torchrun", "tee", "output", "0-3|RANK:0-3,...", readers.parse_streams, "0",
           "Streams to write to log files and to the console; values as for --redirects.", short="-t"),
    Option("torchrun", "local-ranks-filter", "output", "RANK,...", make_optional(readers.parse_local_ranks), "all",
           "Local ranks whose output is shown on the console."),
    Option("torchrun", "duplicate-stdout-filters", "output", "TEXT,...", readers.parse_texts, "",
           "Copy teed lines of stdout that contain a TEXT to filtered_stdout.log. Double each comma in a TEXT."),
    Option("torchrun", "duplicate-stderr-filters", "output", "TEXT,...", readers.parse_texts, "",
           "Copy teed lines of stderr that contain a TEXT to filtered_stderr.log."),

    Option("ours", "events", "events", "FILE", readers.parse_printable, "",
           "File, pipe or - (stdout) to which each event on this node is appended as a line of JSON.",
           section="monitoring"),
    Option("ours", "notify", "events", "COMMAND|URL", readers.parse_printable, "",
           "Shell command (stdin) or http(s) URL (POST) that receives each start and end of a round, each hang, and "
           "the job's end, as JSON.", section="monitoring"),

    Option("torchrun", "standalone", "rendezvous", "", readers.parse_flag, "0",
           "Run on this node only; other rendezvous options, --node-rank, --master-addr and --master-port have no "
           "effect.", field=""),
    Option("torchrun", "rdzv-backend", "rendezvous", "static|c10d|etcd", readers.parse_backend, "static",
           "Store for the nodes. c10d: hosted by the agent at --rdzv-endpoint; static: hosted by node rank 0, with "
           "fixed ranks; etcd (or etcd-v2): an etcd v3 cluster."),
    Option("torchrun", "rdzv-endpoint", "rendezvous", "HOST[:PORT],...", make_optional(readers.parse_endpoints), "",
           "Address of the store; etcds:// selects etcd with TLS. With static: MASTER_ADDR:MASTER_PORT."),
    Option("torchrun", "rdzv-id", "rendezvous", "ID", make_optional(readers.parse_name), "random; required with etcd",
           "Run name, the same on all nodes.", field="run_id"),
    Option("torchrun", "rdzv-conf", "rendezvous", "KEY=VALUE,...", readers.parse_conf, "",
           "Backend settings: torchrun's keys (timeout, join_timeout, is_host, ...), user and password_file."),
    Option("ours", "node-name", "rendezvous", "NAME", make_optional(readers.parse_node_name),
           "the host's name, HOST-2, ...", "Name of this node."),

    Option("ours", "target-nodes", "timeouts", "N", readers.parse_count, "none",
           "Nodes to wait for at start, even if fewer are enough.", section="rendezvous.settings"),
    Option("ours", "start-timeout", "timeouts", "SECONDS", readers.parse_seconds, "600",
           "Time limit at start for health checks, the store and missing nodes.", section="rendezvous.settings"),
    Option("ours", "join-grace", "timeouts", "SECONDS", readers.parse_seconds, "30",
           "Time to wait at start for more nodes after the last one has joined.", section="rendezvous.settings"),
    Option("ours", "rejoin-timeout", "timeouts", "SECONDS", readers.parse_seconds, "1800",
           "Time limit for missing nodes to return.", section="rendezvous.settings"),
    Option("ours", "grow", "timeouts", "never|delay[=SECONDS]|checkpoint", readers.parse_grow, "delay=300",
           "When to restart a running job to use more nodes: never, SECONDS after the last new node joins, or "
           "after a checkpoint.", section="rendezvous.settings"),
    Option("ours", "on-finished", "timeouts", "next|exit|rerun", readers.parse_choice, "next",
           "Action if a run of this name has already ended. next: start again unless it succeeded; exit: exit with "
           "its result; rerun: always start again.", section="rendezvous.settings"),

    Option("torchrun", "node-rank", "static", "N", readers.parse_count, "0", "Rank of this node, from 0.",
           section="rendezvous"),
    Option("torchrun", "master-addr", "static", "ADDRESS", make_optional(readers.parse_host),
           "--local-addr, else loopback", "Address of node rank 0 (MASTER_ADDR).", section="rendezvous"),
    Option("torchrun", "master-port", "static", "PORT", make_optional(readers.parse_port),
           "29500; on one node, any free", "Port of rank 0 (MASTER_PORT).", section="rendezvous"),

    Option("torchrun", "local-addr", "addresses", "ADDRESS", make_optional(readers.parse_host),
           "from the route to the store; loopback on one node", "Address at which other nodes reach this one.",
           section="rendezvous"),
    Option("ours", "port-range", "addresses", "FIRST:LAST", make_optional(readers.parse_port_range), "any free",
           "Ports on which the agent listens for other agents.", section="rendezvous"),
    Option("ours", "worker-port-range", "addresses", "FIRST:LAST", make_optional(readers.parse_port_range), "any free",
           "Ports from which each round's MASTER_PORT is chosen.", section="rendezvous"),

    Option("ours", "legacy-local-rank", "legacy", "", readers.parse_flag, "0",
           "Pass --local-rank=N to SCRIPT as its first argument, like python -m torch.distributed.launch.",
           section="workers"),
    make_ignored("torchrun", "monitor-interval", "SECONDS", readers.parse_seconds, "meshrun does not poll"),
    make_ignored("torchrun", "start-method", "spawn|fork|forkserver", readers.parse_choice,
                 "each worker is started as a program"),
    make_ignored("torchrun", "event-log-handler", "NAME", readers.parse_printable, "use --events to write events"),
    make_ignored("torchrun without variable", "logs-specs", "NAME", readers.parse_printable,
                 "use --log-dir, --redirects and --tee to choose log files"),
    make_ignored("ours", "use-env", "", readers.parse_flag, "LOCAL_RANK is always in the environment"),

    Option("torchrun", "help", "help", "[GROUP]", None, "",
           "Show all options, or one GROUP. -h alone shows the most common options.", field="", short="-h"),
    Option("ours", "completion", "help", "bash|zsh|fish", None, "",
           "Print the completion script for a shell.", field=""),
    Option("ours", "version", "help", "", None, "", "Print the version and the commit of meshrun.", field=""),
)

SETTINGS: tuple[Option, ...] = (
    Option("variable", "min-round-time", "rendezvous", "SECONDS", readers.parse_seconds, "5",
           "A round that ends sooner counts as short. After several short rounds in a row, the next round is delayed, "
           "and finally the job fails.", section="rendezvous.settings"),
    Option("variable", "presence-proof", "rendezvous", "on|off", readers.parse_switch, "on",
           "Whether a node counts as lost as soon as its ports refuse connections, before its lease ends.",
           section="rendezvous.settings"),
    Option("variable", "health-timeout", "health", "SECONDS", readers.parse_seconds, "60",
           "Time limit for --health-check."),
    Option("variable", "progress-file", "hangs", "FILE", make_optional(readers.parse_text), "",
           "File from which the agent reads the last completed step, instead of launcher.worker.progress()."),
    Option("variable", "hang-evidence", "workers", "auto|0|1", readers.parse_choice, "auto",
           "Whether meshctl why can read torch's flight recorder. auto: in scripts that use meshrun's own Python; 1: "
           "in all scripts (each start of Python takes a few ms more); 0: in no script."),
    Option("variable", "log-times", "output", "auto|on|off", readers.parse_choice, "auto",
           "Prefix the agent's lines with time and node name. auto: if stderr is not a terminal."),
    Option("variable", "rdzv-prefix", "rendezvous", "PREFIX", readers.parse_text, "meshrun",
           "Prefix of the run's keys in the store.", field=""),
    Option("variable", "store-port", "rendezvous", "PORT", make_optional(readers.parse_port), "MASTER_PORT + 1",
           "With a static rendezvous: port of the store on node rank 0.", field=""),
    Option("variable", "interface", "rendezvous", "NAME", make_optional(readers.parse_text), "",
           "Network interface whose address other nodes use to reach this one."),
)
# fmt: on

ROWS = (*TABLE, *SETTINGS)
"""Those of the kernel."""
FAMILIES = ("LAUNCHER_", "PET_", "MESHRUN_", "TORCHRUN_")
"""How variables begin that are options, or were probably meant for one."""
BY_NAME = {option.name: option for option in TABLE}
SETTING_BY_NAME = {setting.name: setting for setting in SETTINGS}
BY_SHORT = {option.short: option for option in TABLE if option.short}


def name_variable(name: str) -> str:
    """Return the variable of an option of ours."""
    return f"LAUNCHER_{name.replace('-', '_').upper()}"


def find_row(name: str) -> Option | None:
    """Return the row of an option, also of an extension's, whose rows are imported then; None for another name."""
    if name not in extensions.OPTIONS:
        return BY_NAME.get(name)
    rows: tuple[Option, ...] = extensions.load_entry(extensions.OPTIONS[name])
    return next(row for row in rows if row.name == name)


def list_options() -> list[Option]:
    """Return the rows of all options, those of extensions last, which are imported all."""
    return [*TABLE, *filter(None, map(find_row, extensions.OPTIONS))]
