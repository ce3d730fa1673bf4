"""One module for each wire a harness may speak. A wire is translated and nothing else.

A module has

- `parse(body, headers) -> Ask`: the request in the gateway's own words, or a `Fault`;
- `error(fault) -> bytes`: a failure in the shape that the wire's clients read;
- `Reply(ask)`: one answer on its way to one connection, `whole` or as a stream: `opening`, any number of `pulse`, then `closing` or `failure`.

**Translation is element-wise.** What a wire makes of one element of `messages` or `input` never depends on the others: an element gives no,
one or several `Message`s, a tool result keeps the id of its call (names are found when the conversation is rendered), and an answer that
comes in several elements gives `part`s, which `conversation.joined` puts together. So a body whose first elements were seen before may
be parsed without them, and their messages put between `Ask.messages[:Ask.lead]` and the rest.

**A turn's id goes out and comes back** in whatever the wire's harnesses bring back verbatim: call ids everywhere, the signature of a
thinking block in Messages, encrypted content and item ids in Responses. Nothing is believed because of it: it only picks among the
turns that stand where the request says they do.

**What a harness asks of sampling is recorded** (`Ask.asked`), never obeyed: the job's parameters are what the training's mathematics assumes.
Only `max_tokens` and stop strings, which shorten an answer, are followed. What the model can not do at all (read images, give several
choices) is refused, in the user's words; in a tool's result an image becomes a note instead, because there the policy is the one to learn it.
"""
