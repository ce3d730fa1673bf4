#!/bin/bash
# Scores 1 if answer.txt holds the expected number and nothing else, otherwise 0.
score=0
if [ -f answer.txt ] && [ ! -L answer.txt ] && cmp -s answer.txt /tests/expected.txt; then
  score=1
fi
mkdir -p /logs/verifier
echo "$score" > /logs/verifier/reward.txt
