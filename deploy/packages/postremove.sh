#!/bin/sh
# The data and the user stay: the data is accepted events, and what was a user's file must not
# become another's.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
