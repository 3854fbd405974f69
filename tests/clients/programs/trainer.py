"""The Trainer of transformers on a tiny GPT-2 that learns to count; the model is made here, nothing is downloaded.

Started by a test. The Trainer finds the process group by itself; rank 0 prints the last mean loss.
"""

from __future__ import annotations

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

NUMBERS, LENGTH = 16, 12
rows = [torch.arange(start, start + LENGTH) % NUMBERS for start in range(64)]
config = GPT2Config(
    vocab_size=NUMBERS, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
torch.set_num_threads(1)
torch.manual_seed(0)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir=sys.argv[1],
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=8,
        num_train_epochs=15,
        learning_rate=1e-2,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=[{"input_ids": row, "labels": row} for row in rows],
)
trainer.train()
if trainer.is_world_process_zero():
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"workers {trainer.args.world_size}, loss {float(losses[-1]):.3f}", flush=True)
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
