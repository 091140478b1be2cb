"""A script with a trainer of `trl.experimental`, by its own arguments."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import ModelConfig, ScriptArguments, TrlParser
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, ORPOConfig, ModelConfig))
    script, training, model = parser.parse_args_and_config()
    trainer = ORPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model.model_name_or_path),
        args=training,
        train_dataset=load_dataset(script.dataset_name)["train"],
        processing_class=AutoTokenizer.from_pretrained(model.model_name_or_path),
    )
    trainer.train()
