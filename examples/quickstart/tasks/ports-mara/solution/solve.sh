#!/bin/bash
sed 's/.*: //' ports.txt > answer.txt
