"""The loop: propose, try, verify, choose."""
