#!/bin/bash
sed 's/.*: //' tracks.txt > answer.txt
