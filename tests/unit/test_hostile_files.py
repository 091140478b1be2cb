"""What is looked at can do nothing to whoever looks: files, names and run folders by strangers."""

import json
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table

from autotune.bundle.bundle import found_by
from autotune.bundle.launch_script import exports
from autotune.bundle.planned import marked
from autotune.bundle.readme import heading, page
from autotune.cli.command import echo, print_json
from autotune.cli.views.console import PlainConsole
from autotune.errors import Problem, UserError
from autotune.facts import facts_from_plain
from autotune.facts.data_card import check_card
from autotune.facts.model_files import check_weights, locate_model, refuse_pickles
from autotune.plan.cache import PlanCache
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.space.job_file.load import load_job
from tests.unit.builders import make_facts
from tests.unit.calling import call, refused
from tests.unit.loading import load, problems
from tests.unit.past_run import make_run, write_job, write_planned

EVIL = "a\x1b]0;owned\x07\x9b2J\u202eb\r"
RECORDED = Path(__file__).parents[1] / "golden" / "recorded"
SHOWN = "a\\x1b]0;owned\\x07\\x9b2J\\u202eb\\r"


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """None of it may hang: what does is ended by the alarm."""
    signal.alarm(240)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("text", ["no", "off", "'false'", "'true'", "yes", "1", "[true]"])
@pytest.mark.parametrize("method", ["sft", "ppo"])
def test_remote_code_is_no_matter_of_a_texts_truth(tmp_path: Path, text: str, method: str) -> None:
    start = f"method: {method}\ntraining: {{trust_remote_code: {text}}}\n"
    found = problems(tmp_path, start + ("max_length: null\n" if method == "ppo" else ""))
    assert [what for _, what, _ in found if "trust_remote_code" in what], found


@pytest.mark.parametrize("text", ["true", "'no'"])
def test_remote_code_is_asked_for_in_one_place(tmp_path: Path, text: str) -> None:
    start = f"training: {{model_init_kwargs: {{trust_remote_code: {text}}}}}\n"
    found = [(what, hint) for _, what, hint in problems(tmp_path, start) if "model_init" in what]
    ((what, hint),) = found
    assert "`model_init_kwargs` holds `trust_remote_code`" in what
    assert "training: {trust_remote_code: true}" in str(hint)


@pytest.mark.parametrize("field", ["accelerator_config", "fsdp_config", "lr_scheduler_kwargs"])
def test_a_mapping_is_read_from_no_file(tmp_path: Path, field: str) -> None:
    text = f"training: {{{field}: /dev/zero}}\n"
    found = {what: hint for _, what, hint in problems(tmp_path, text)}
    hint = found[f"`{field}` must be a mapping or null, but got `/dev/zero`"]
    assert "write `{name: value}`" in str(hint)


def test_a_secret_is_refused_and_not_told(tmp_path: Path) -> None:
    file = write_job(tmp_path, training={"hub_token": "hf_SECRET"})
    for arguments in ((file,), (file, "--set", "hub_token=hf_SECRET2", "--json")):
        told = refused("validate", *arguments)
        assert "`hub_token` is a secret" in told and "HF_TOKEN" in told
        assert "hf_SECRET" not in told
    nested = "training: {model_init_kwargs: {token: hf_SECRET}}\n"
    assert "hf_SECRET" not in str(problems(tmp_path, nested))


def test_reward_functions_are_named_in_one_place(tmp_path: Path) -> None:
    for name in ("m", "d"):
        (tmp_path / name).mkdir()
    text = "method: grpo\nmax_length: null\nreward_funcs: [accuracy_reward]\n"
    assert load(tmp_path, text).reward_funcs == ["accuracy_reward"]
    ((_, what, hint),) = problems(tmp_path, text + "training: {reward_funcs: [evil.r]}\n")
    assert "`reward_funcs` belongs to `reward_funcs` of the job" in what
    assert hint == "write `reward_funcs: [evil.r]`"


BOMB = "a: &a [1, 2]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 20)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=False)
)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large", "bomb"])
def test_files_that_a_job_names_are_regular_and_of_a_sane_size(tmp_path: Path, kind: str) -> None:
    file = odd_file(tmp_path / "odd.yaml", kind)
    assert refused("validate", file)
    told = refused("validate", write_job(tmp_path), "--set", "lora_r=&a [*a]")
    assert "cannot read the value of `lora_r=&a [*a]`" in told


@pytest.mark.parametrize("kind", ["pipe", "device", "large", "missing"])
def test_files_that_a_flag_names_are_regular_and_of_a_sane_size(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "odd"
    if kind != "missing":
        odd_file(file, kind)
    worker = ("worker", "--server", "http://localhost:1", "--folder", tmp_path / "works")
    assert "file with a token" in refused(*worker, "--token-file", file)
    assert "file of settings" in refused("serve", "--runs", tmp_path / "s", "--config", file)


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large", "bomb", "deep", "digits"])
@pytest.mark.parametrize("name", ["accelerate.yaml", "deepspeed.json"])
def test_files_that_are_checked_are_regular_and_of_a_sane_size(
    tmp_path: Path, kind: str, name: str
) -> None:
    for other in ("sft_config.yaml", "accelerate.yaml", "deepspeed.json"):
        (tmp_path / other).write_bytes((RECORDED / "zero3" / other).read_bytes())
    (tmp_path / name).unlink()
    odd_file(tmp_path / name, kind)
    for arguments in ((), (f"--{name.split('.')[0]}", name)):
        result = call("check", tmp_path, *arguments)
        assert result.exit_code in (1, 2), result.output
        assert "bug" not in result.stderr


def odd_file(file: Path, kind: str) -> Path:
    """A file that is none, or has no end."""
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    else:
        ends = {"large": "x: " + "y" * 30_000_000, "bomb": BOMB, "digits": f"a: {'9' * 5000}\n"}
        deep = "[" * 1200
        text = {**ends, "deep": deep if file.suffix == ".json" else f"a: {deep}"}[kind]
        file.write_text(text, encoding="utf-8")
    return file


def test_a_run_folder_of_pipes_is_not_waited_for(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for name in ("run.json", "facts.json", "job.yaml", "estimates.json"):
        text = (run.path / name).read_text() if (run.path / name).exists() else None
        (run.path / name).unlink(missing_ok=True)
        os.mkfifo(run.path / name)
        codes = [call(command, run.path).exit_code for command in ("report", "emit")]
        assert codes == ([0, 0] if text is None else [2, 2])
        (run.path / name).unlink()
        if text is not None:
            (run.path / name).write_text(text)


def test_a_document_without_end_is_none(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    assert read_json(tmp_path / "zero") is read_json(tmp_path / "pipe") is None


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_models_files_are_regular_and_of_a_sane_size(
    tmp_path: Path, kind: str, name: str
) -> None:
    if (name, kind) == ("model.safetensors", "large"):
        return  # weights are
    model = tmp_path / "model"
    model.mkdir()
    for other in ("config.json", "model.safetensors"):
        (model / other).write_text('{"model_type": "llama"}')
    (model / name).unlink(missing_ok=True)
    if kind == "large":
        with (model / name).open("wb") as file:
            file.truncate(2**29)
    else:
        odd_file(model / name, kind)
    job, definition = load_job(None, [f"model={model}", "dataset={lengths: {max: 8}}"])
    PlanCache(path=tmp_path / "cache").key(job, definition, "h100")
    with pytest.raises(UserError, match=f"{name}: is (a pipe or a device|larger than)"):
        locate_model(str(model), tmp_path / "made", None, True)


def test_pickles_are_loaded_where_a_job_asks_for_them(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UserError, match="are pickles .*`weights: real`"):
        refuse_pickles(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    refuse_pickles(str(tmp_path))


CARD = "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: {}\n"
ELSEWHERE = ("/etc/passwd", "../x.jsonl", "a/../../x", "https://h/x", "['a', '~/x']", "hf://d/x")


@pytest.mark.parametrize("place", ELSEWHERE)
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_a_data_folders_card_names_nothing_elsewhere(tmp_path: Path, place: str, ends: str) -> None:
    texts = {"README.md": f"---\n{CARD.format(place)}---\n# Data\n", ".huggingface.yaml": ""}
    texts[".huggingface.yaml"] = CARD.format(place)
    for name, text in texts.items():
        head = text.removesuffix("# Data\n").removesuffix("\n")
        (tmp_path / name).write_bytes(f"{head.replace(chr(10), ends)}\n".encode())
        with pytest.raises(UserError, match="names data outside of its folder"):
            check_card(tmp_path)
        (tmp_path / name).write_text(text.replace(place, "data/*.jsonl"), encoding="utf-8")
        check_card(tmp_path)


def test_a_card_that_names_a_folder_elsewhere_is_refused(tmp_path: Path) -> None:
    card = "configs:\n- {config_name: a, data_dir: /etc}\n"
    (tmp_path / ".huggingface.yaml").write_text(card)
    with pytest.raises(UserError, match="names data outside of its folder: /etc"):
        check_card(tmp_path)


@pytest.mark.parametrize("entry", ["sep: '(a+)+$'", "converters: {}", "delimiter: ab"])
def test_a_card_sets_nothing_for_the_reader_of_its_data(tmp_path: Path, entry: str) -> None:
    card = "configs:\n- config_name: a\n  data_files: x.csv\n  sep: ';'\n"
    (tmp_path / ".huggingface.yaml").write_text(card)
    check_card(tmp_path)
    (tmp_path / ".huggingface.yaml").write_text(card.replace("sep: ';'", entry))
    with pytest.raises(UserError, match=f"sets `{entry.split(':')[0]}` for the reader"):
        check_card(tmp_path)


def with_header(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


SOUND = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
LIES = {
    "cut": with_header({"a": SOUND}, b"0" * 15),
    "nothing": b"",
    "no end": struct.pack("<Q", 2**63) + b"{}",
    "no JSON": struct.pack("<Q", 4) + b"abcd",
    "beyond": with_header({"a": {**SOUND, "data_offsets": [0, 1600]}}, b"0" * 16),
    "shape": with_header({"a": {**SOUND, "shape": [5]}}, b"0" * 16),
    "type": with_header({"a": {**SOUND, "dtype": "X9"}}, b"0" * 16),
    "pickle": b"\x80\x04\x95" + b"a" * 99,
}


@pytest.mark.parametrize("lie", [*LIES, "a folder"])
def test_weights_that_are_cut_or_lie_are_found(tmp_path: Path, lie: str) -> None:
    file = tmp_path / "model-00001-of-00001.safetensors"
    file.write_bytes(with_header({"a": SOUND}, b"0" * 16))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": file.name}}))
    check_weights(str(tmp_path))
    file.unlink()
    file.mkdir() if lie == "a folder" else file.write_bytes(LIES[lie])
    with pytest.raises(UserError, match="00001.safetensors: holds no whole weights: "):
        check_weights(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 5}', '{"weight_map": {"a": 5}}'])
def test_an_index_of_weights_names_what_is_there(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    check_weights(str(tmp_path))  # a plan needs none
    (tmp_path / "a.safetensors").write_bytes(with_header({"a": SOUND}, b"0" * 16))
    with pytest.raises(UserError, match="holds no whole weights: "):
        check_weights(str(tmp_path))
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "a.safetensors"}}))
    with pytest.raises(UserError, match="no file has the tensor b"):
        check_weights(str(tmp_path))


@pytest.mark.parametrize("name", ["run[1]", "a?b", "a*", "a::b", "a\nb"])
def test_a_path_that_could_be_read_as_another_is_refused(tmp_path: Path, name: str) -> None:
    file = write_job(tmp_path, dataset=f"./{name}")
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / name)
    for told in (
        refused("validate", file),
        refused("validate", file, "--set", f"dataset={tmp_path}/link"),
    ):
        assert "`dataset`: '" in told and "it, so that a library may read other files" in told
    sound = write_job(tmp_path, dataset={"lengths": {"max": 8}})
    assert "so that a library may" in refused("run", sound, "--out", tmp_path / name)
    assert not list((tmp_path / name).iterdir())


def test_control_characters_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    echo(EVIL)
    table = Table()
    table.add_column(EVIL)
    table.add_row(EVIL)
    PlainConsole(width=100).print(table, EVIL)
    print_json({EVIL: EVIL})
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 4 and EVIL in json.loads(out.splitlines()[-1])
    told = refused("validate", tmp_path / f"{EVIL}\nerror: none.yaml")
    for text in (out, told):
        assert not [one for one in text if one in EVIL and one not in SHOWN]
    assert not told.splitlines()[0].endswith(EVIL) and "\nerror: none" not in told


def test_a_name_begins_no_line() -> None:
    assert Problem(where="a\nb", what="c\nd").render() == "a\\nb: c\\nd"
    assert heading("<b>[x](y)`z`", "t") == "# \\<b\\>\\[x\\](y)\\`z\\`: t"
    assert found_by(1, 2, "<b>") == "Found by autotune on \\<b\\>: 1 probes out of 2 candidates."
    assert page(["a\n# b", EVIL]) == f"a # b\n{SHOWN}\n"
    script = marked({"launch.sh": "#!/bin/bash\nset -euo pipefail\n"}, f"x\ntouch y\n{EVIL}")
    lines = script["launch.sh"].splitlines()
    assert not [one for one in lines if one.startswith("touch")]
    assert "\x1b" not in script["launch.sh"]


@settings(max_examples=40)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_a_variable_of_a_script_is_taken_as_it_stands(text: str) -> None:
    script = exports({"VALUE": text}) + 'printf %s "$VALUE"'
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, env=environment, check=True)
    assert done.stdout.decode() == text


HOSTILE: list[tuple[str, str, Any]] = [
    ("device", "index", "$(touch owned)"),
    ("device", "peers", ["1; touch owned"]),
    ("device", "cores", "8"),
    ("device", "total_bytes", True),
    ("model", "path", ["x"]),
    ("model", "layers", 1.5),
    ("data", "source", {"a": 1}),
    ("data", "rows", float("nan")),
]


def test_facts_of_another_type_reach_no_script(tmp_path: Path) -> None:
    plain = json.loads(json.dumps(make_facts().plain()))
    assert facts_from_plain(plain) == make_facts()
    for part, name, value in HOSTILE:
        with pytest.raises(ValueError):
            facts_from_plain({**plain, part: {**plain[part], name: value}})
    run = make_run(tmp_path)
    write_json(run.facts, {**plain, "device": {**plain["device"], "index": "$(touch owned)"}})
    for command in ("report", "emit", "verify"):
        assert "facts.json does not belong to this" in refused(command, run.path)


def test_facts_come_back_as_they_were() -> None:
    for kind in ("cpu", "cuda"):
        facts = make_facts(kind)
        assert facts_from_plain(json.loads(json.dumps(facts.plain()))) == facts


def test_a_bundle_that_was_changed_is_not_launched(tmp_path: Path) -> None:
    run, owned = make_run(tmp_path), tmp_path / "owned"
    call("emit", run.path)
    for name in ("launch.sh", "sft_config.yaml", "accelerate.yaml"):
        text = (run.bundle / name).read_text()
        added = f"\ntouch {owned}\n" if name == "launch.sh" else "\nx: y\n"
        (run.bundle / name).write_text(text + added)
        told = refused("verify", run.path)
        assert f"{name}: not what this run emits, so it is not launched" in told
        assert f"`autotune emit {run.path}`" in told
        (run.bundle / name).write_text(text)
    (run.bundle / "launch.sh").unlink()
    os.mkfifo(run.bundle / "launch.sh")
    assert "not what this run emits" in refused("verify", run.path)
    assert not owned.exists() and not run.verification.exists()


def test_runs_and_the_cache_are_their_owners(tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return path.stat().st_mode & 0o777

    for folder in (tmp_path / "new", tmp_path / "empty"):
        run = RunFolder(path=folder)
        (tmp_path / "empty").mkdir(exist_ok=True)
        run.begin("model: m\n", {"schema": 1})
        assert (mode(run.path), mode(run.job), mode(run.run)) == (0o700, 0o600, 0o600)
    cache = PlanCache(path=tmp_path / "made" / "cache")
    cache.make("plans")
    write_json(cache.path / "plans" / "x.json", {})
    assert (mode(cache.path), mode(cache.path / "plans" / "x.json")) == (0o700, 0o600)
    assert mode(tmp_path / "made") != 0o700


def tree(folder: Path) -> dict[str, bytes | None]:
    """What lies in a folder, the files with what they hold."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink()
    }


def fill(folder: Path, *names: str) -> None:
    """Somebody's own files, named as a run names its own."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious", encoding="utf-8")


OWN_FOLDERS = (
    *("data", "model", "probes", "probes/0000", "probes/0000/rank-0", "survey", "estimates"),
    *("verification", "bundle", "tracking", "tracking/tensorboard", "what_if", "dataset"),
)
OWN_FILES = ("model/config.json", "estimates/reply.json", "server.log", ".lock")


def test_a_link_out_of_a_run_folder_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    run, theirs = make_run(tmp_path), tmp_path / "theirs"
    fill(theirs, "rows/a", "raw/a", "0000/a", "rank-0/scratch/a", "scratch/a", "config.json", "a")
    for name in (*OWN_FOLDERS, *OWN_FILES):
        link = run.path / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(theirs / link.name if name in OWN_FILES else theirs)
        before = tree(tmp_path)
        with pytest.raises(UserError, match=f"{link}: this link leads elsewhere"), run.locked():
            pass
        if name in ("data", "probes"):
            for command in (("verify",), ("run", "--resume"), ("emit",)):
                assert f"{link}: this link leads elsewhere" in refused(*command, run.path)
        assert tree(tmp_path) == before
        link.unlink()
    (run.path / "loop").symlink_to(run.path / "loop")
    with run.locked():  # leads nowhere
        pass


@pytest.mark.parametrize("name", ["probes", "probes/0000", "tracking/tensorboard"])
def test_no_way_out_of_a_run_folder_leads_through_its_trainings(tmp_path: Path, name: str) -> None:
    """The training's own folder may hold links to anywhere."""
    run = make_run(tmp_path)
    fill(tmp_path, "theirs/scratch/a")
    run.output.mkdir()
    (run.output / "rank-0").symlink_to(tmp_path / "theirs")
    link = run.path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(run.output)
    with pytest.raises(UserError, match=f"{link}: this link leads elsewhere"), run.locked():
        pass


def test_links_that_lie_in_a_run_folder_by_right_are_taken(tmp_path: Path) -> None:
    run = RunFolder(path=tmp_path / "run")
    fill(tmp_path, "rows.jsonl", "checkpoints/a", "run/tracking/wandb/run-1/a", "wandb.log")
    fill(run.path, "probes/0000/progress.jsonl", "probes/0000/rank-0/a", "dataset/a")
    (run.dataset / "train.jsonl").symlink_to(tmp_path / "rows.jsonl")
    (run.path / "output").symlink_to(tmp_path / "checkpoints")
    (run.tracking / "wandb" / "latest-run").symlink_to("run-1")
    (run.tracking / "wandb" / "run-1" / "core.log").symlink_to(tmp_path / "wandb.log")
    (run.probe(0).path / "rank-0" / "progress.jsonl").symlink_to(Path("..") / "progress.jsonl")
    (tmp_path / "named").symlink_to(run.path)
    with RunFolder(path=tmp_path / "named").locked():
        pass


def test_a_plans_bundle_whose_folder_is_a_link_loses_nobody_anything(tmp_path: Path) -> None:
    """The folder that it leads to is the user's own, with files named as those of a run."""
    write_planned(tmp_path, tmp_path / "stranger")
    fill(tmp_path, "data/a.jsonl", "data/rows/a", "bundle/a", "probes/a", "facts.json", "a.draft")
    shutil.rmtree(tmp_path / "stranger" / "run")
    (tmp_path / "stranger" / "run").symlink_to("..")
    before = tree(tmp_path)
    link = tmp_path / "stranger" / "run"
    assert f"{link}: this link leads elsewhere" in refused("verify", link.parent)
    assert tree(tmp_path) == before


def test_half_a_character_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text('model: m\nglobal_batch_size: "\\ud800"\n', encoding="utf-8")
    assert "job.yaml:2: not valid YAML: half of a character" in refused(
        "validate", tmp_path / "job.yaml"
    )
