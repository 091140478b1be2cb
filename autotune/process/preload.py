"""The parts of libraries that the forkserver imports besides them, so that children need not.

Transformers and TRL import their parts on first use; these are the parts a trainer uses. Nothing
here may touch a device or start a thread.
"""

import transformers
import trl
from transformers.models.qwen2 import modeling_qwen2

TOUCHED = (
    transformers.Trainer,
    transformers.AutoConfig,
    transformers.AutoTokenizer,
    transformers.AutoModelForCausalLM,
    trl.SFTTrainer,
    trl.SFTConfig,
    trl.TrlParser,
    trl.ModelConfig,
    modeling_qwen2,
)
