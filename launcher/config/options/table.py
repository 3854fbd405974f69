"""Every option of the command, in one table.

A row says all of one option: where its name is from, how it is written and read, what holds without it, its help, and
the field of the Config that it sets. The parser, the help, the reference page, the variables of an option and the
suggestions for a misspelt flag are derived from `TABLE`, so they cannot disagree. Names, spellings and defaults are
torchrun 2.13's where it has the option.
"""

from __future__ import annotations

from functools import partial

from launcher.config.options.readers import (
    Option,
    make_optional,
    parse_backend,
    parse_choice,
    parse_command,
    parse_conf,
    parse_count,
    parse_devices,
    parse_devices_per_worker,
    parse_flag,
    parse_host,
    parse_lease_ttl,
    parse_local_ranks,
    parse_locality,
    parse_locality_sources,
    parse_logs_specs,
    parse_mesh,
    parse_modules,
    parse_name,
    parse_node_name,
    parse_node_range,
    parse_port,
    parse_port_range,
    parse_printable,
    parse_seconds,
    parse_short_text,
    parse_signal,
    parse_signals,
    parse_standby,
    parse_streams,
    parse_switch,
    parse_text,
    parse_texts,
    parse_timeout,
    parse_variable_name,
    parse_worker_count,
)

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
    # source, name, group, metavar, reader, default, help; what is not derived from these
    Option("torchrun", "nnodes", "size", "N|MIN:MAX", parse_node_range, "1:1", "Nodes with ranks; more are spares. "
           "MIN: is open above, as is a job with a --mesh that meets others.", field=""),
    Option("torchrun", "nproc-per-node", "size", "N|auto|gpu|cpu|xpu|...", make_optional(parse_worker_count),
           "auto if accelerators are found, else 1", "Workers on this node.", field="worker_count"),
    Option("ours", "mesh", "size", "AXIS=SIZE,...", make_optional(parse_mesh), "dp=*",
           "The grid of ranks, outermost axis first, e.g. pp=4,dp=*,tp=8; one axis may be * and takes what is there."),
    Option("ours", "elastic", "size", "MIN:MAX", parse_text, "1:",
           "Sizes the axis with * may take; N, MIN: and :MAX will do.", part="placement_options"),
    Option("ours", "dp-min", "size", "N", parse_text, "1",
           "The same as --elastic N: for the axis with *.", part="placement_options"),
    Option("ours", "dp-max", "size", "N", parse_text, "none",
           "The same as --elastic :N for the axis with *.", part="placement_options"),

    Option("ours", "devices", "devices", "KIND[:COUNT]|NAME:COUNT", make_optional(parse_devices), "what is found",
           "The devices workers are for: nvidia, amd, intel, tpu (also tpu:TYPE, as in tpu:v5e-16), cpu, or the "
           "NAME of a plug-in."),
    Option("ours", "visible-env", "devices", "VARIABLE", parse_variable_name, "that of the kind",
           "What makes devices visible to a worker; with it --devices NAME:COUNT is believed.", field=""),
    Option("ours", "devices-per-worker", "devices", "N|all", make_optional(parse_devices_per_worker),
           "1; all for JAX on TPUs", "Devices a worker gets for itself."),
    Option("ours", "device-binding", "devices", "local-rank|visible", parse_choice, "local-rank",
           "Workers pick their device by LOCAL_RANK, or see only their own."),
    Option("torchrun", "virtual-local-rank", "devices", "", parse_flag, "0",
           "Every worker sees LOCAL_RANK 0 and its own GPU as device 0."),
    Option("torchrun without variable", "numa-binding", "devices", "node|socket|exclusive|core-complex",
           make_optional(partial(parse_choice, hint="leave it out to bind nothing")), "",
           "Keep every worker to CPUs near its device."),

    Option("ours", "traffic", "placement", "AXIS=WEIGHT[:KIND],...", parse_text, "tp=100,cp=30,ep=20,dp=10,pp=3",
           "Bytes a rank sends along an axis, in proportion; A+B is one group over both. KIND is ring, line or "
           "all.", part="placement_options"),
    Option("ours", "level-costs", "placement", "LEVEL=COST,...", parse_text, "host=1, then 2, 4, 8, ...",
           "Cost of leaving a domain of a level.", part="placement_options", alias="tolls"),
    Option("ours", "rates", "placement", "LEVEL=RATE,...", parse_text, "",
           "Of links, each way, e.g. leaf=400Gbit,leaf:l3=100Gbit: plan by time.",
           part="placement_options"),
    Option("ours", "unit", "placement", "N", parse_text, "inner axes that fit a node",
           "Consecutive ranks kept on one node.", part="placement_options"),
    Option("ours", "within", "placement", "AXIS=LEVEL,...", parse_text, "", "Every group of the axis stays inside one "
           "domain of the level; one machine knows only host.", part="placement_options"),
    Option("ours", "whole", "placement", "LEVEL[:HOSTS]", parse_text, "", "Use domains of the level with all their HOSTS "
           "nodes or not at all.", part="placement_options"),
    Option("ours", "move-cost", "placement", "COST", parse_text, "5 % of the plan for all",
           "Cost of moving a rank to another node.", part="placement_options"),

    Option("ours", "locality", "locality", "LEVEL=DOMAIN,...", parse_locality, "",
           "This node's place, outermost level first: zone=a,spine=s1,leaf=l3."),
    Option("ours", "locality-file", "locality", "FILE", make_optional(parse_printable), "",
           "Places of all nodes: lines of a host and LEVEL=DOMAIN,...; * is any other host."),
    Option("ours", "locality-command", "locality", "COMMAND",
           make_optional(partial(parse_command, hint="it prints one line like zone=a,spine=s1,leaf=l3")), "",
           "A command of the shell that prints this node's place within 10 s."),
    Option("ours", "locality-sources", "locality", "auto|none|NAME,...", parse_locality_sources, "auto",
           "Who else is asked: those of which there is a sign, nobody, or these, the most trusted first."),
    Option("ours", "measure", "locality", "", parse_flag, "0",
           "Before the first round, load the network for seconds to find every node's place."),

    Option("torchrun", "module", "script", "", parse_flag, "0",
           "SCRIPT is a module, run as by python -m.", field="", short="-m"),
    Option("torchrun", "no-python", "script", "", parse_flag, "0",
           "SCRIPT is a program, run without Python.", field=""),
    Option("torchrun", "run-path", "script", "", parse_flag, "0",
           "Run SCRIPT by runpy.run_path. Wins over --no-python.", field=""),
    Option("torchrun", "role", "script", "NAME", parse_short_text, "default",
           "Name of the workers, seen in ROLE_NAME and in prefixes."),
    Option("ours", "framework", "script", "auto|torch|jax|xla|NAME", parse_printable, "auto",
           "Whose variables the workers get beside torchrun's; auto: jax where only JAX can be imported."),
    Option("ours", "preload", "script", "MODULE,...", parse_modules, "",
           "Import these once; workers are forked with them in memory."),
    Option("ours", "standby", "script", "SETS", parse_standby, "0",
           "Further sets of workers that wait, forked, for a restart."),

    Option("torchrun", "max-restarts", "restarts", "N", parse_count, "0",
           "How often the workers are restarted before the job fails."),
    Option("ours", "restart-window", "restarts", "SECONDS", parse_seconds, "none",
           "Only failures this recent count.", part="settings"),
    Option("ours", "min-round-time", "restarts", "SECONDS", parse_seconds, "5", "A round that ends sooner made no "
           "progress: after several, the next one waits a little, and then the job fails.", part="settings"),
    Option("ours", "attempt", "restarts", "N", make_optional(parse_count), "none", "Which attempt at the run this is, "
           "where a scheduler counts them; agents of an earlier one end.", last_variable="SLURM_RESTART_COUNT"),
    Option("torchrun", "shutdown-timeout", "restarts", "SECONDS", parse_seconds, "30",
           "From the stop signal to the kill.", last_variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
    Option("torchrun", "monitor-interval", "restarts", "SECONDS", parse_seconds, "0.1",
           "No effect: nothing here polls."),

    Option("torchrun", "signals-to-handle", "leaving", "NAME,...", parse_signals, "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
           "Signals that are passed on to the workers and make this node leave."),
    Option("ours", "preemption-signal", "leaving", "NAME", make_optional(parse_signal), "",
           "A further signal to leave on; workers get SIGTERM."),
    Option("ours", "preemption-file", "leaving", "FILE", make_optional(parse_text), "",
           "Leave within a second once this file is there."),
    Option("ours", "lease-ttl", "leaving", "SECONDS", make_optional(parse_lease_ttl), "5; none on one machine",
           "A node cut off for so long kills its workers."),
    Option("ours", "store-outage", "leaving", "continue|stop", parse_switch, "continue",
           "Whether workers go on when no node reaches the store.", field="continues_without_store", part="settings"),
    Option("ours", "presence-proof", "leaving", "on|off", parse_switch, "on",
           "A node whose ports refuse is lost at once, not by its lease.", part="settings"),

    Option("ours", "health-check", "health", "COMMAND",
           make_optional(partial(parse_command, hint="leave it out to check nothing of your own")), "",
           "A command of the shell that must succeed before this node joins; if it fails it is run again later."),
    Option("ours", "health-timeout", "health", "SECONDS", parse_seconds, "60",
           "The longest that such a check may take."),
    Option("ours", "heartbeat-timeout", "health", "SECONDS", parse_timeout, "none",
           "A worker that has called launcher.worker.heartbeat() and is silent for so long has failed."),

    Option("torchrun", "log-dir", "output", "DIR", make_optional(parse_text), "a temporary directory",
           "Base directory of the log files; each run makes its own below it."),
    Option("torchrun", "redirects", "output", "0-3|RANK:0-3,...", parse_streams, "0",
           "Log files instead of the console: 0 for nothing, 1 stdout, 2 stderr, 3 both.", short="-r"),
    Option("torchrun", "tee", "output", "0-3|RANK:0-3,...", parse_streams, "0",
           "Log files and the console, likewise.", short="-t"),
    Option("torchrun", "local-ranks-filter", "output", "RANK,...", make_optional(parse_local_ranks), "all",
           "Local ranks whose output the console shows."),

    Option("torchrun", "standalone", "meeting", "", parse_flag, "0", "One node that meets nobody: the other options "
           "of this group, --node-rank, --master-addr and --master-port then have no effect."),
    Option("torchrun", "rdzv-backend", "meeting", "static|c10d|etcd", parse_backend, "static",
           "c10d: one node's agent serves the store; static: node rank 0's does; etcd (also etcd-v2): v3."),
    Option("torchrun", "rdzv-endpoint", "meeting", "HOST[:PORT],...", make_optional(parse_text), "",
           "The store; etcds:// in front for TLS. With static: the master."),
    Option("torchrun", "rdzv-id", "meeting", "ID", make_optional(parse_name), "random; etcd needs one",
           "Name of the run.", field="run_id"),
    Option("torchrun", "rdzv-conf", "meeting", "KEY=VALUE,...", parse_conf, "",
           "torchrun's further settings, and user, password_file."),
    Option("ours", "rdzv-prefix", "meeting", "PREFIX", parse_text, "meshrun",
           "Where the run's keys lie in the store.", field="network"),
    Option("ours", "node-name", "meeting", "NAME", make_optional(parse_node_name), "the host's name",
           "What this node is called."),

    Option("ours", "target-nodes", "waiting", "N", parse_count, "none",
           "At the start wait for so many nodes, though fewer would do.", part="settings"),
    Option("ours", "start-timeout", "waiting", "SECONDS", parse_seconds, "600",
           "The longest wait to be fit, for the store, for nodes.", part="settings"),
    Option("ours", "join-grace", "waiting", "SECONDS", parse_seconds, "30",
           "At the start wait so long after the last node came.", part="settings"),
    Option("ours", "rejoin-timeout", "waiting", "SECONDS", parse_seconds, "1800",
           "The longest wait for nodes to come back.", part="settings"),
    Option("ours", "grow", "waiting", "never|delay|checkpoint", parse_choice, "delay",
           "When a running job restarts to use more nodes.", part="settings"),
    Option("ours", "grow-delay", "waiting", "SECONDS", parse_seconds, "300",
           "Quiet after the last arrival before it does.", part="settings"),
    Option("ours", "on-finished", "waiting", "next|exit", parse_switch, "next",
           "If this run has failed before: begin anew, or end as it did.", field="opens_next_job", part="settings"),

    Option("torchrun", "node-rank", "static", "N", parse_count, "0", "The number of this node, from 0."),
    Option("torchrun", "master-addr", "static", "ADDRESS", make_optional(parse_host), "--local-addr, else loopback",
           "MASTER_ADDR, on node rank 0."),
    Option("torchrun", "master-port", "static", "PORT", make_optional(parse_port),
           "29500; on one node a fresh one for every round", "MASTER_PORT."),
    Option("ours", "store-port", "static", "PORT", make_optional(parse_port), "MASTER_PORT + 1",
           "Where node rank 0 serves the store.", field=""),

    Option("torchrun", "local-addr", "addresses", "ADDRESS", make_optional(parse_host),
           "that of the route to the store", "This node's address, as others reach it; loopback if alone."),
    Option("ours", "interface", "addresses", "NAME", make_optional(parse_text), "",
           "The network interface that has this node's address."),
    Option("ours", "port-range", "addresses", "FIRST:LAST", make_optional(parse_port_range), "any free",
           "Where the agent listens for other agents."),
    Option("ours", "worker-port-range", "addresses", "FIRST:LAST", make_optional(parse_port_range), "any free",
           "Where rank 0 listens."),

    Option("torchrun", "duplicate-stdout-filters", "logs", "TEXT,...", parse_texts, "",
           "Teed lines that hold a TEXT also go to one file, filtered_stdout.log; two commas are one inside a TEXT."),
    Option("torchrun", "duplicate-stderr-filters", "logs", "TEXT,...", parse_texts, "",
           "The same for stderr, in filtered_stderr.log."),
    Option("torchrun without variable", "logs-specs", "logs", "NAME", parse_logs_specs, "default",
           "A plug-in of entry point group torchrun.logs_specs says where output goes."),
    Option("torchrun", "event-log-handler", "logs", "NAME", parse_printable, "null",
           "Where events go: null, console (JSON lines on stderr), or a handler that torch knows."),

    Option("torchrun", "start-method", "legacy", "spawn|fork|forkserver", parse_choice, "spawn",
           "No effect: a worker is a program of its own.", field=""),
    Option("ours", "use-env", "legacy", "", parse_flag, "0",
           "No effect: LOCAL_RANK is in the environment, as under torchrun.", field=""),
    Option("ours", "legacy-local-rank", "legacy", "", parse_flag, "0",
           "Give SCRIPT --local-rank=N as its first argument, as python -m torch.distributed.launch does."),

    Option("torchrun", "help", "help", "[GROUP]", None, "",
           "This text, or the part of it that is called GROUP.", field="", short="-h"),
    Option("ours", "version", "help", "", None, "", "The version of meshrun.", field=""),
)
# fmt: on

BY_NAME = {option.name: option for option in TABLE}
BY_ALIAS = {option.alias: option for option in TABLE if option.alias}
BY_SHORT = {option.short: option for option in TABLE if option.short}
