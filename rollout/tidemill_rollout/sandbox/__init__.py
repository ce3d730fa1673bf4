"""Where harnesses and evaluators run: jails on this machine. Everything in one is untrusted."""
