"""Ask the model for some lines, one after the other, and write them to lines.txt. Standard library only."""

import json
import os
import pathlib
import random
import time
import urllib.error
import urllib.request

base = os.environ["TIDEMILL_BASE_URL"]
headers = {"Authorization": "Bearer " + os.environ["TIDEMILL_API_KEY"], "Content-Type": "application/json"}
random.seed(base)  # it names the execution: their lengths differ, as those of real agents do, and are the same in every run


def ask(messages, most):
    """One answer of at most so many tokens; while the model is away (5xx, no connection), ask again."""
    body = json.dumps({"model": "policy", "messages": messages, "max_tokens": most}).encode()
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(base + "/v1/chat/completions", body, headers), timeout=600) as answer:
                return json.load(answer)["choices"][0]["message"]["content"] or ""
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise
        except (OSError, ValueError):
            pass
        time.sleep(0.5)


messages = [{"role": "user", "content": pathlib.Path(os.environ["TIDEMILL_INSTRUCTION_FILE"]).read_text()}]
lines = []
for _ in range(random.randint(1, 5)):
    lines.append(ask(messages, most=random.randint(48, 256)))
    messages += [{"role": "assistant", "content": lines[-1]}, {"role": "user", "content": "Another."}]
pathlib.Path("lines.txt").write_text("\n".join(lines))
