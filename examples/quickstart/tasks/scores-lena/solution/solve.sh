#!/bin/bash
sed 's/.*: //' scores.txt > answer.txt
