"""DeepSpeed's engines and FSDP2 on fake tensors. A child only."""
