"""The one door to Tianshou: its batches, buffers, collectors and trainers are touched only here."""
