#!/bin/bash
echo -n "a tree that loves the light" > lines.txt
