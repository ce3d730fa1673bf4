#!/bin/bash
sed 's/.*: //' badges.txt > answer.txt
