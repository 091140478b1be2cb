"""What is taken hold of inside TRL, and what is said where it is not there."""

import importlib
from types import SimpleNamespace

import pytest

from autotune.facts.stack import fused_head, version
from autotune.job.methods import METHODS
from autotune.training.patching import MissingHook, require
from autotune.training.registry import family


def test_what_is_missing_is_named_with_the_versions():
    owner = SimpleNamespace(__name__="a.module", there=1)
    require(owner, "there")
    with pytest.raises(MissingHook) as error:
        require(owner, "there", "gone", "gone_too")
    text = str(error.value)
    assert "`a.module` has no `gone`, `gone_too`" in text
    assert f"TRL {version('trl')}" in text and f"transformers {version('transformers')}" in text


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpo", "kto", "grpo", "rloo"])
def test_the_installed_trainers_have_what_families_replace(method):
    trl = importlib.import_module("trl")
    require(getattr(trl, METHODS[method].trainer), *family(method).hooks)


@pytest.mark.slow
def test_a_trainer_without_its_hooks_is_refused(monkeypatch):
    monkeypatch.setattr(type(family("dpo")), "hooks", ("_precompute_ref_logps", "_renamed"))
    with pytest.raises(MissingHook, match="`DPOTrainer` has no `_renamed` in TRL"):
        family("dpo").trainer(None, None, None, None)


@pytest.mark.slow
@pytest.mark.ppo
def test_what_a_probe_of_ppo_replaces_is_put_back():
    """Of the module too, which the next trainer of the process would find."""
    module = importlib.import_module("trl.experimental.ppo.ppo_trainer")
    original, listener = module.batch_generation, SimpleNamespace()
    accelerator = SimpleNamespace(accumulate=None, backward=None)
    trainer = SimpleNamespace(accelerator=accelerator, optimizer=SimpleNamespace(step=print))
    with pytest.raises(ZeroDivisionError), family("ppo").follow(trainer, listener):
        assert module.batch_generation is not original
        raise ZeroDivisionError
    assert module.batch_generation is original
    assert trainer.optimizer.step is print


@pytest.mark.slow
def test_the_loss_of_the_installed_trl_has_chunks_that_are_known():
    if fused_head():
        fused = importlib.import_module("autotune.estimate.tracing.fused_head")
        assert fused.tokens_per_chunk() == 4096
        assert fused.tiles(151_936, 32_768) == {32_768, 151_936 - 4 * 32_768}
        assert fused.tiles(65_536, 32_768) == {32_768}
        assert fused.tiles(509, 32_768) >= {509}
    else:
        trainer = importlib.import_module("trl.trainer.sft_trainer")
        assert trainer._CHUNKED_LM_HEAD_CHUNK_SIZE == 256
