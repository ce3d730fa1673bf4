#!/bin/bash
sed 's/.*: //' desks.txt > answer.txt
