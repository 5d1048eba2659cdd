"""What prefill and decode workers have in common: who they are, what they load, what a leg says."""
