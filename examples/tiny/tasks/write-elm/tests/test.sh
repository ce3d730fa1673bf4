#!/bin/bash
# Score: the share of characters in lines.txt that are lower-case letters or spaces.
mkdir -p /logs/verifier
all=$(wc -c < lines.txt 2>/dev/null || echo 0)
good=$(tr -cd 'a-z ' < lines.txt 2>/dev/null | wc -c)
awk -v good="$good" -v all="$all" 'BEGIN { print (all > 0 ? good / all : 0) }' > /logs/verifier/reward.txt
