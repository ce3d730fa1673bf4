#!/bin/bash
sed 's/.*: //' tables.txt > answer.txt
