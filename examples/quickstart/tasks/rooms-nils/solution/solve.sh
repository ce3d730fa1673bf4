#!/bin/bash
sed 's/.*: //' rooms.txt > answer.txt
