"""The model proxy: the only thing a harness talks to. It answers in the harness's wire and keeps every sampled token."""
