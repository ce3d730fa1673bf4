#!/bin/bash
sed 's/.*: //' keys.txt > answer.txt
