#!/bin/bash
sed 's/.*: //' seats.txt > answer.txt
