"""Which secrets are removed from a report, and what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config.scrub import PRIVATE
from launcher.meshctl.doctor.redact import REMOVED, find_secrets, redact, show_variable


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, "s3cret-value") for name in sorted(PRIVATE)),
        ("WANDB_API_KEY", "0123456789abcdef"),
        ("HF_TOKEN", "x"),
        ("AWS_SECRET_ACCESS_KEY", "abc/def+ghi"),
        ("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE"),
        ("GITHUB_TOKEN", "ghs_1"),
        ("DB_PASS", "hunter2"),
        ("MYSQL_PWD", "hunter2"),
        ("RAY_AUTH_TOKEN_PATH", "given-by-mistake"),
        ("AZURE_STORAGE_CONNECTION_STRING", "AccountKey=abc"),
        ("comet_api_key", "lower"),
        ("SLURM_JWT", "short"),
    ],
)
def test_the_value_of_a_secret_variable_is_not_shown(name: str, text: str) -> None:
    assert show_variable(name, text) == REMOVED


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PWD", "/data/job"),
        ("LAUNCHER_JOB_SECRET_FILE", "/run/secrets/job"),
        ("LAUNCHER_NNODES", "4:8"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("NCCL_DEBUG", "INFO"),
        ("GIT_AUTHOR_NAME", "n"),
        ("XAUTHORITY", "/home/n/.Xauthority"),
        ("PYTHONHASHSEED", "0"),
        ("HF_TOKEN", ""),
    ],
)
def test_the_value_of_another_variable_is_shown(name: str, text: str) -> None:
    assert show_variable(name, text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pw@proxy:3128/x", f"https://{REMOVED}@proxy:3128/x"),
        ("etcd://token@host", f"etcd://{REMOVED}@host"),
        ("train.py --wandb-api-key abc --lr 1", f"train.py --wandb-api-key {REMOVED} --lr 1"),
        ("train.py --password=abc --lr 1", f"train.py --password={REMOVED} --lr 1"),
        ("['--token', 'abc', '--lr', '1']", f"['--token', '{REMOVED}', '--lr', '1']"),
        ("env WANDB_API_KEY=abc python x", f"env WANDB_API_KEY={REMOVED} python x"),
        ("user=a,password=b,timeout=3", f"user=a,password={REMOVED},timeout=3"),
        ("--api-key 'two words' x", f"--api-key '{REMOVED}' x"),
        ('password="two words" x', f'password="{REMOVED}" x'),
        ("PASSWORD:b", f"PASSWORD:{REMOVED}"),
        ("curl -H 'X-Auth-Token: b' u", f"curl -H 'X-Auth-Token: {REMOVED}' u"),
        ("redis://:pw@h:6379/0", f"redis://{REMOVED}@h:6379/0"),
        ('["API_KEY=abc", "X=1"]', f'["API_KEY={REMOVED}", "X=1"]'),
        ('{"password": "b", "n": 1}', f'{{"password": "{REMOVED}", "n": 1}}'),
        ("{'api_key': 'b'}", f"{{'api_key': '{REMOVED}'}}"),
        ("db:\n  password: b\n  n: 1", f"db:\n  password: {REMOVED}\n  n: 1"),
        ("Authorization: Bearer abcdefgh.ijk", f"Authorization: Bearer {REMOVED}"),
        ("authorization: Basic abcdefgh=", f"authorization: Basic {REMOVED}"),
        ("login with hf_abcdefghijklmnop now", f"login with {REMOVED} now"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nx", f"{REMOVED}\nx"),
        ("-----BEGIN PRIVATE KEY-----\ncut off", REMOVED),
        ("https://x.example/c?sv=2&sig=a%3D&se=1", f"https://x.example/c?sv=2&sig={REMOVED}&se=1"),
        ("?X-Amz-Credential=a&X-Amz-Date=b", f"?X-Amz-Credential={REMOVED}&X-Amz-Date=b"),
    ],
)
def test_what_looks_like_a_secret_is_removed_from_text(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "the store refuses the password: authentication failed",
        "password_file=/run/secrets/etcd,timeout=3",
        '"LAUNCHER_JOB_SECRET": "LAUNCHER_JOB_SECRET_FILE"',
        "  LAUNCHER_JOB_SECRET     set by LAUNCHER_JOB_SECRET",
        "train.py --tokenizer gpt2 --author n",
        "https://host:8080/a@b",
        "commit 82b7a5a6328b80efa27ad2765b4beec8dec94fbe",
        "an etcd password is set, but no user",
        "set password_file=PATH in --rdzv-conf, or the variable LAUNCHER_ETCD_PASSWORD_FILE",
        "basic validation passed",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert redact(text).replace(f"={REMOVED}", "=PATH") == text


def test_known_secrets_are_removed_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    environ = {
        "LAUNCHER_STORE_TOKEN_FILE": str(tmp_path / "token"),
        "LAUNCHER_JOB_SECRET_FILE": str(tmp_path / "missing"),
        "LAUNCHER_ETCD_PASSWORD": 'with "quotes"',
        "WANDB_API_KEY": "long-enough",
        "HF_TOKEN": "short",
        "LAUNCHER_LOG_DIR": "not-secret",
    }
    secrets = find_secrets(environ, [str(tmp_path / "token"), "\0"])
    assert set(secrets) == {"from-a-file", 'with "quotes"', r"with \"quotes\"", "long-enough"}
    text = r'a from-a-file "with \"quotes\"" long-enough-er short not-secret'
    assert redact(text, secrets) == rf'a {REMOVED} "{REMOVED}" {REMOVED}-er short not-secret'


@pytest.mark.parametrize("text", ["a" * 100_000, "token " * 10_000, "key-" * 20_000, '"' * 100_000, "x://" * 20_000])
def test_a_text_of_any_form_is_read_in_linear_time(text: str) -> None:
    """The limit of this test run is the assertion: with a pattern that is not, it takes hours."""
    assert redact(text) == text or REMOVED in redact(text)
