#!/bin/bash
sed 's/.*: //' shelves.txt > answer.txt
